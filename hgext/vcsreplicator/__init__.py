# SPDX-License-Identifier: GPL-2.0-or-later
"""replicate repositories to mirrors, and announce what all of them serve

On a master, everything that changes a repository becomes one durable event: changesets, bookmarks, phases and obsolescence
markers of a push commit together with their event, or none of them does. A relay moves the events to the replication log, where
mirrors, the aggregator and the notifier (command ``vcsreplicator``) take them from there. On a mirror, this extension shows what
was released and nothing else.

Configuration of a master::

  [extensions]
  # without this Mercurial goes on, with a warning, where it cannot load one of them
  *:required = yes
  pushlog =
  vcsreplicator =

  [vcsreplicator]
  role = master
  # the relay's socket; without it the push writes to the log itself
  relay = /run/vcsreplicator/relay.sock
  log = sqlite:///var/lib/vcsreplicator/log.db
  # what survives a power cut before the pusher hears "ok": "store" (everything) or "outbox" (the event)
  durability = store
  # what a pusher waits for, and for how many seconds: the log's word, then the mirrors too ("mirrors"), or nothing ("outbox")
  acknowledge = log
  acknowledge-timeout = 5
  # for how many seconds a process that has waited in vain does not wait again
  relay-pause = 30
  # whether a change is kept and sent later while the log is unavailable, or refused ("refuse")
  unavailable = accept
  # whether a commit on the server itself is refused, or an event like a push ("accept")
  commits = refuse
  # where to keep bundles that are too large for the log: file:///folder or s3://bucket/prefix
  blobs = file:///srv/hg-blobs
  # whether to keep a Mercurial without this extension out of the repositories, for reading too
  lock = no
  # whether a push's record in the log carries address and client of the pusher, for the decoder
  record-connection = no

  [vcsreplicator-roots]
  # folder = prefix of its repositories in the log ("." for none)
  /repos = .

Repositories outside the roots are not replicated, and pushes to them are refused. ``docs/push.md`` says what happens in a push,
and what each message means. Configuration of a mirror: ``role = mirror``, see ``docs/serving.md``.
"""

testedwith = b"6.9 7.0 7.1 7.2"

# The attributes that Mercurial reads from an extension. Loaded on demand, so that a daemon, which imports modules of this package,
# imports no Mercurial with it.
_SEAMS = frozenset({"cmdtable", "configtable", "uisetup", "extsetup", "reposetup"})


_failure: Exception | None = None


def __getattr__(name: str) -> object:
    """Return an attribute that Mercurial reads from an extension.

    If the extension cannot be loaded, `reposetup` refuses every repository: Mercurial would only warn. Raises AttributeError for
    the other names then, and always for names that Mercurial does not read.
    """
    global _failure
    if name not in _SEAMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    if _failure is None:
        try:
            return getattr(importlib.import_module(".hg.registration", __name__), name)
        except Exception as failure:
            _failure = failure
    if name == "reposetup":
        return importlib.import_module(".hg.closed", __name__).refuse_for(_failure)
    raise AttributeError(name) from _failure
