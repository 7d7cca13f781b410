# SPDX-License-Identifier: GPL-2.0-or-later
"""A master's repository: every outermost transaction is captured, abandoned ones are recovered, what cannot be told is refused."""

import contextlib
import os
import time
from typing import Any

from mercurial import error

from ...outbox import Outbox
from ...relay.client import RelayLine
from ...words.errors import MalformedEvent
from ...words.event import Type
from .. import observe, requirement
from ..settings import Acknowledge, Durability, ExtensionSettings, root_of
from ..text import path as path_text
from . import announcing, capture, creation, durability, intents, overlay, refusals
from .capture import Capture


def set_up(repo: Any, settings: ExtensionSettings) -> None:
    """Gives a repository below a root its behaviour; others only refuse what clients push to them."""
    folder = os.path.dirname(path_text(repo.sharedpath))
    path = settings.wire_path(folder)
    if path is None:
        if b"/.hg/" not in repo.root + b"/":
            repo.ui.setconfig(b"hooks", b"pretxnopen.vcsreplicator", _refuse_outside, b"vcsreplicator")
            repo.ui.setconfig(b"hooks", b"prepushkey.vcsreplicator", _refuse_outside, b"vcsreplicator")
        return
    if overlay.is_overlay(repo):
        repo.__class__ = overlay.read_only(repo.__class__)
        return
    repo.ui.setconfig(b"ui", b"rollback", False, b"vcsreplicator")
    repo.ui.setconfig(b"hooks", b"precommit.vcsreplicator", _refuse_commit, b"vcsreplicator")
    repo.__class__ = _with_capture(repo.__class__, folder, path, settings)
    if repo.svfs.exists(b"journal"):
        recover_abandoned(repo)
    if settings.lock:
        requirement.lock_out(repo)
    if creation.just_created(repo):
        announce_creation(repo)


def announce_creation(repo: Any) -> None:
    """Writes the first event of a repository that has none; left to `after_clone` where a clone holds the lock."""
    try:
        lock = repo.lock(wait=False)
    except error.LockError:
        return
    with lock, repo.transaction(creation.TRANSACTION):
        pass


def after_clone(original: Any, *arguments: Any, **keywords: Any) -> Any:
    """Wraps `clone`: a copy of another repository's store was no transaction, so it is announced now (`tests/hg/master/init.t`)."""
    source, destination = original(*arguments, **keywords)
    repo = destination.local() if destination is not None else None
    if repo is not None and not hasattr(repo, "announces_changes"):
        requirement.let_in(repo.unfiltered())
    elif repo is not None and Outbox(repo.svfs).end() is None:
        announce_creation(repo.unfiltered())
    return source, destination


RACED = b"an abandoned transaction was in the way and is rolled back; please push again"


def _with_capture(base: type, folder: str, path: str, settings: ExtensionSettings) -> type:
    class replicatedrepository(base):  # type: ignore[misc, valid-type]
        announces_changes = True
        replication_path = path
        replication_root = root_of(settings, folder)
        replication_roots = settings.roots

        def transaction(self, desc: bytes, report: Any = None) -> Any:
            repo = self.unfiltered()
            if repo.currenttransaction() is not None or getattr(repo, announcing.QUIET, False):
                return super().transaction(desc, report)
            if desc != announcing.LIFECYCLE:
                _recover(repo, desc)
                _finish_interrupted(repo, settings)
            line = RelayLine.open(settings.relay, folder) if settings.relay else None
            try:
                captured = capture.begin(
                    repo,
                    path,
                    settings,
                    lambda: creation.next_generation(self.replication_root, path),
                    transaction=desc,
                )
                tr = super().transaction(desc, report)
            except BaseException:
                if line is not None:
                    line.close()
                raise
            if desc != announcing.LIFECYCLE:
                # The relay looks when the line is opened, and may have found a fork since.
                tr.addvalidator(capture.FINALIZER, lambda _tr: refusals.refuse_fork(Outbox(repo.svfs)))
            _watch(tr, captured, line, folder)
            return tr

        def rollback(self, dryrun: bool = False, force: bool = False) -> Any:
            raise error.Abort(b"a replicated repository cannot be rolled back", hint=b"use 'hg strip' or 'hg backout'")

    return replicatedrepository


def _watch(tr: Any, captured: Capture, line: RelayLine | None, folder: str) -> None:
    """Hangs the capture into a transaction that has just been opened."""
    setattr(tr, announcing.CAPTURE, captured)
    repo, settings = captured.repo, captured.configuration
    if settings.durability is Durability.STORE:
        durability.sync_before_change(repo, tr)
        tr.addfinalize(capture.FIRST, lambda tr: durability.sync_journal(repo))
    tr.addfinalize(capture.FINALIZER, captured.finalize)

    def committed(_tr: Any) -> None:
        if captured.written:
            _after_commit(captured, line)

    def ended(_tr: Any) -> None:
        if captured.written:
            repo._afterlock(lambda _success: report(captured, line, folder))
        else:
            _close(line)

    tr.addpostclose(capture.FIRST, committed)
    tr.addpostclose(capture.FINALIZER, ended)
    tr.addabort(capture.FINALIZER, lambda _tr: _close(line))


def _after_commit(captured: Capture, line: RelayLine | None) -> None:
    """What is left to do under the lock; a failure here concerns the operator, not the pusher, whose push is committed.

    The relay is told as soon as the commit is on disk: it sends while Mercurial writes its caches and releases the locks.
    """
    repo = captured.repo
    captured.committed = time.monotonic()
    with _logged(repo):
        durability.after_commit(repo)
    if line is not None:
        line.tell(captured.written[-1].event.seq)
    with _logged(repo):
        Outbox(repo.svfs).prune()


@contextlib.contextmanager
def _logged(repo: Any) -> Any:
    """Within, what the disk refuses goes to Mercurial's log."""
    try:
        yield
    except OSError as problem:
        repo.ui.log(b"vcsreplicator", b"after the commit: %s\n", str(problem).encode())


def report(captured: Capture, line: RelayLine | None, folder: str) -> None:
    """With the locks released: waits for the log's word as the policy says, and tells the pusher. Never raises.

    Without a relay the event is sent now.
    """
    from . import sending

    settings, fork = captured.configuration, None
    try:
        if settings.acknowledge is Acknowledge.OUTBOX:
            captured.repo.ui.status(b"recorded push in outbox; it will be sent to the replication log\n")
            return
        known = line.hears(patience=settings.patience) if line is not None else False
        if line is None and settings.log:
            known = sending.send_now(captured.repo, folder, settings, patience=settings.patience)
        fork = None if known else Outbox(captured.repo.svfs).fork()
    except Exception as problem:
        known = False
        captured.repo.ui.log(b"vcsreplicator", b"not sent: %s\n", repr(problem).encode())
    finally:
        _close(line)
    if known:
        _say_recorded(captured, time.monotonic() - captured.committed)
    elif fork is not None:
        captured.repo.ui.warn(b"the push is kept and is not sent: %s\n" % fork.encode())
    else:
        captured.repo.ui.warn(b"replication log not reachable: the push is kept and will be sent\n")


def _finish_interrupted(repo: Any, settings: ExtensionSettings) -> None:
    """Ends what a kill interrupted in this repository, before anything else happens in it; the caller holds the lock."""
    root, intent = repo.replication_root, intents.read(repo.replication_root, repo.replication_path)
    if intent is None:
        return
    from . import lifecycle

    try:
        intents.confine(intent, root, settings.roots)
    except MalformedEvent as problem:
        file = intents.file_of(root, intent.path)
        hint = b"look at what became of this repository, then remove that file"
        raise error.Abort(f"{file}: {problem}".encode(), hint=hint) from problem
    if not intent.concerns(Outbox(repo.svfs).level()):
        intents.remove(root, intent.path)  # of another repository, which is where it belongs
        return
    repo.ui.warn(b"an interrupted %s is being finished\n" % intent.kind.encode())
    lifecycle.finish(repo, intent)
    if intent.to is not None:
        repo._afterlock(lambda _success: lifecycle.finish_move(root, intent))
        raise error.Abort(b"this repository was %s" % intent.kind.encode())


def _say_recorded(captured: Capture, seconds: float) -> None:
    """One line about a push or a creation; what a command of ours did, that command tells."""
    kind = captured.written[-1].event.type
    if kind is Type.CREATED:
        captured.repo.ui.status(b"(recorded repository creation in replication log in %.3fs)\n" % seconds)
    elif kind is Type.CHANGED:
        captured.repo.ui.status(b"recorded push in replication log in %.3fs\n" % seconds)


def recover_abandoned(repo: Any) -> bool:
    """Rolls back what a dead process left, before anybody reads it; leaves a living one alone, for that holds the lock.

    Called when a repository is opened, so that a push begins with what is really there (`tests/hg/master/abandoned.t`).
    """
    try:
        lock = repo.lock(wait=False)
    except (error.LockError, OSError):
        return False
    with lock:
        return bool(repo.svfs.exists(b"journal") and repo.recover())


def _recover(repo: Any, desc: bytes) -> None:
    """The same in the middle of a change, holding the lock: a push that saw what is rolled back now must begin again."""
    if not repo.svfs.exists(b"journal"):
        return
    repo.ui.warn(b"abandoned transaction found; running recover\n")
    seen = observe.tip(repo)
    repo.recover()
    if observe.tip(repo) == seen:
        return
    if desc.startswith(b"pushkey"):  # the command of old clients for phases and markers, which knows no race
        raise error.Abort(RACED)
    if desc.startswith((b"unbundle", b"serve", b"push")):
        raise error.PushRaced(RACED)


def _close(line: RelayLine | None) -> None:
    if line is not None:
        line.close()


def _refuse_outside(ui: Any, repo: Any, txnname: bytes = b"serve", **_arguments: Any) -> bool:
    """A push that nobody would hear of is refused, whatever it brings; changes by people on the machine itself are theirs.

    Clients' transactions are known by their names (`tests/hg/master/refused.t`);
    `prepushkey` is for their old commands, outside of any.
    """
    if not txnname.startswith((b"serve", b"pushkey")):
        return False
    ui.warn(b"%s\n(%s)\n" % announcing.NOT_CONFIGURED)
    return True


def _refuse_commit(ui: Any, repo: Any, **_arguments: Any) -> bool:
    ui.warn(b"cannot commit to replicating repositories; push instead\n")
    return True
