# SPDX-License-Identifier: GPL-2.0-or-later
"""record who pushed what and when, and show it

Every push to a repository becomes one row of its pushlog: a number, the user, the time and the changesets. A row commits with
its push or not at all, even in a crash. Clones and pulls from a server with this extension bring the server's pushlog along.

Web: ``pushloghtml`` (pages), ``pushlog`` (Atom feed), ``json-pushes`` (JSON). Templates: ``{pushid}``, ``{pushuser}``,
``{pushdate}``, ``{pushbasenode}``, ``{pushheadnode}``. Revsets: ``pushhead()``, ``pushdate(interval)``, ``pushuser(string)``,
``pushid(number)``, ``pushrev(set)``. Commands: :hg:`verifypushlog`, :hg:`repairpushlog`,
:hg:`copypushlog`.

Configuration::

  [pushlog]
  # put before the recorded user, as PREFIX:USER: for USER, and for the web server's REMOTE_USER
  userprefix =
  remoteuserprefix =
  # accounts that push on behalf of another user, whom AUTOLAND_REQUEST_USER names
  landingusers =
  # what gets a row: changesets that arrive by push, serve, pull, unbundle, and those that are made here by commit, merge, rebase
  record = push serve
  # the environment's variables that may name the pusher: the first that is set does
  user-variables = REMOTE_USER USER
  # milliseconds to wait for a locked pushlog2.db: readers, writers
  timeoutro = 10000
  timeoutrw = 30000
  # milliseconds between attempts to fetch a server's pushlog, times the attempt
  retrydelayms = 1500
  # the most pushes that one answer to a web request holds, the rest by its Link header; 0 for complete answers
  maxpushes = 0
  # seconds that json-pushes?wait=ID waits at most
  maxwait = 10
"""

from __future__ import annotations

import atexit
import gc

from mercurial.localrepo import localrepository
from mercurial.ui import ui as Ui

from . import api, registration, seams, settings, store, streams, versions
from .store import regular

testedwith = b"6.3 6.9 7.0 7.1 7.2"
seams.check_version(versions.OLDEST)

configtable = settings.configtable
cmdtable = registration.cmdtable
revsetpredicate = registration.predicate
templatekeyword = registration.keyword

__all__ = ["api"]


_setup = seams.Setup("pushlog")


def uisetup(ui: Ui) -> None:
    """Let a server over SSH collect garbage rarely.

    It lives for one push or pull; the reason is in `docs/decisions/rare-collections.md`. Longer-lived processes do not, because
    they would keep their garbage.
    """
    if seams.serves_one_client():
        gc.set_threshold(20_000, 10, 10)
        atexit.register(gc.freeze)


def extsetup(ui: Ui) -> None:
    _setup.run(_wrap)


def _wrap() -> None:
    regular.install()
    regular.guard_extensions()
    store.complete_journals()
    registration.wrap()
    if seams.serves_one_client():
        from . import preload

        preload.load_while_waiting(*registration.OF_A_PUSH)
    else:
        from . import recording
        from .web import seam

        dir(recording)  # loaded before there are threads
        seam.register()
    streams.refuse_pushed()


def reposetup(ui: Ui, repo: localrepository) -> None:
    _setup.check(repo)
    if repo.local():
        repo.ui.setconfig(b"hooks", settings.HOOK, registration.record, b"pushlog")
        if not settings.read_recorded(repo.ui).isdisjoint(settings.MADE_HERE):
            repo.ui.setconfig(b"hooks", settings.COMMIT_HOOK, registration.record_commit, b"pushlog")
