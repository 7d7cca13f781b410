# SPDX-License-Identifier: GPL-2.0-or-later
"""What a master hands over, how a mirror's repository goes on with it, and what a former master did not send."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from mercurial import config, error
from mercurial.localrepo import localrepository
from mercurial.transaction import transaction as Transaction
from mercurial.utils import stringutil

from ..outbox.entry import Entry, MirrorNeeds
from ..outbox.file import Fork, Outbox, outbox_of
from ..outbox.folder import open_regular
from ..words.errors import Refused
from ..words.event import NO_CHANGES, Event, MasterSettings, NamedEvent, Tip, Type
from ..words.value import replace
from . import hashes
from .bundles import RepositoryOpener, make_bundle
from .master.capture import FINALIZER
from .master.repository import OWN
from .replica import replicated
from .text import text

if TYPE_CHECKING:
    from ..mirror.checkpoint import Checkpoint
    from ..mirror.comparison import Fingerprint
    from ..mirror.jobs.promotion import HandedHgrc
    from .relaying import MasterRepositories


def close_outbox(repo: localrepository, wanted: Fork) -> bool:
    """Make a repository refuse every change from now on, for the reason of the wanted fork.

    Returns False, and changes nothing, while the log lacks some of its events, or another process works in it. Raises Refused for a
    repository that refuses changes for another reason.
    """
    box = Outbox(repo.svfs)
    try:
        # An account may hold either lock forever.
        with repo.lock(wait=False), box.sending(wait=False) as alone:
            fork = box.fork()
            if fork is not None and fork != wanted:
                raise Refused(f"it refuses pushes: {fork.reason}; see: vcsreplicator check")
            if not alone or box.newest() is None or box.has_unsent() or repo.svfs.exists(b"journal"):
                return False
            if fork is None:
                box.set_fork(wanted)
            return True
    except error.LockError:
        return False


def read_handed(opener: RepositoryOpener, folder: str) -> tuple[Fingerprint, HandedHgrc | None]:
    """Read the fingerprint and the hgrc of a closed repository; raises Unavailable and OSError."""
    repo = opener.open(folder)
    return hashes.fingerprint(repo, Outbox(repo.svfs).newest), read_hgrc(folder)


def read_hgrc(folder: str) -> HandedHgrc | None:
    """Read the hgrc of a repository, to hand it over; None if there is none.

    Nor is one read that others than root and this user may have written, or that is a link: the hooks in it would run on the new
    master, where the user of the services owns it. Raises OSError.
    """
    from ..mirror.jobs.promotion import HandedHgrc

    if os.path.islink(_hgrc(folder)):
        return None
    try:
        with open(_hgrc(folder), "rb", opener=open_regular) as file:
            found = os.fstat(file.fileno())
            if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
                return None
            return HandedHgrc(content=file.read().decode("latin-1"), mode=found.st_mode & 0o777)
    except FileNotFoundError:
        return None


def roll_back_copy(repositories: MasterRepositories, folder: str) -> None:
    """Roll back an abandoned transaction of a mirror's repository, if there is one; raises Refused."""
    journal = os.path.join(folder, ".hg", "store", "journal")
    if not os.path.lexists(journal):
        return
    try:
        if not repositories.recover(folder) and os.path.lexists(journal):
            raise Refused(f"{folder}: an abandoned transaction cannot be rolled back: another process has locked it")
    except (error.Error, OSError) as problem:
        reason = text(stringutil.forcebytestr(problem)).strip()
        raise Refused(f"{folder}: an abandoned transaction cannot be rolled back: {reason}") from problem


def read_copy(opener: RepositoryOpener, folder: str) -> Fingerprint | None:
    """Read the fingerprint of a mirror's repository; None if that cannot be done."""
    try:
        repo = opener.open(folder)
        return hashes.fingerprint(repo, lambda: replicated.read(repo))
    except Exception:  # a file of it is damaged, in any way
        return None


def take_hgrc(folder: str, handed: HandedHgrc | None) -> None:
    """Replace the hgrc of a mirror's repository that has no outbox yet; later an administrator may have changed it."""
    if handed is not None and outbox_of(folder).newest() is None:
        _replace_hgrc(folder, handed.content.encode("latin-1"), handed.mode)


def keep_drafts(folder: str, checkpoint: Checkpoint) -> None:
    """Have a mirror's repository without an outbox keep drafts if the former master did, unless its hgrc says something else.

    No mirror has the former master's hgrc, and what a publishing repository makes public stays so in all clones. Raises Refused for
    an hgrc that cannot be read, having changed nothing.
    """
    if checkpoint.settings.publishing is not False or outbox_of(folder).newest() is not None:
        return
    content, known = b"", config.config()
    try:
        with suppress(FileNotFoundError), open(_hgrc(folder), "rb", opener=open_regular) as file:
            content = file.read()
        known.parse(b"hgrc", content, include=lambda *_, **__: None)
    except (OSError, error.ConfigError) as problem:
        raise Refused(f"{_hgrc(folder)}: {problem}; expected a file that Mercurial can read, not a link") from problem
    if known.get(b"phases", b"publish") is None:
        _replace_hgrc(folder, content + b"\n[phases]\npublish = no\n", 0o644)


def _replace_hgrc(folder: str, content: bytes, mode: int) -> None:
    new = f"{_hgrc(folder)}.new"
    with suppress(FileNotFoundError):
        os.unlink(new)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), mode)
    os.replace(new, _hgrc(folder))


def _hgrc(folder: str) -> str:
    return os.path.join(folder, ".hg", "hgrc")


def continue_outbox(repo: localrepository, checkpoint: Checkpoint, logged: Event | None) -> None:
    """Write an outbox whose newest event is that of the checkpoint, and is in the log.

    `logged` is this event as the log has it, None if it has expired there. Does nothing if the outbox follows from this event
    already. After a kill on the way, the repository refuses pushes, or its newest event is sent again; then `roll_back_copy` and a
    second call complete the outbox. Raises Refused for an outbox of another history, and if another process has locked the
    repository.
    """
    box = Outbox(repo.svfs)
    try:
        with repo.wlock(wait=False), repo.lock(wait=False), box.sending(wait=True):
            newest = box.newest()
            if newest is None:
                box.set_fork(None)
                entry = Entry(event=_make_event(checkpoint, logged), needs=MirrorNeeds.MASTER)

                def append(tr: Transaction) -> None:
                    box.append(tr, [entry])

                with repo.transaction(OWN + b"promoted") as tr:
                    tr.addfinalize(FINALIZER, append)
            elif newest.incarnation != checkpoint.incarnation or newest.seq < checkpoint.seq:
                raise Refused(f"{checkpoint.path}: it has an outbox of another history; move .hg/store/outbox.* away")
            first = next(box.kept(), None)
            if first is not None and first.entry.event.id == checkpoint.id and box.sent() is None:
                place = (
                    {} if checkpoint.offset < 0 else {"partition": checkpoint.partition, "offset": checkpoint.offset}
                )
                box.mark_sent(replace(first.sent(), **place))
    except error.LockError as problem:
        raise Refused(f"{checkpoint.path}: another process has locked it; stop the mirror's web servers") from problem


def save_changesets(opener: RepositoryOpener, folder: str, first: int, file: str) -> bool:
    """Write the changesets from this revision on to a new bundle; return False if none.

    `hg unbundle` makes them public. Raises OSError, and Refused for a damaged repository.
    """
    try:
        repo = opener.open(folder)
        if first >= len(repo):
            return False
        with open(file, "xb") as bundle:
            bundle.writelines(make_bundle(repo, first, len(repo)))
        return True
    except error.Error as problem:
        raise Refused(str(problem)) from problem


def _make_event(checkpoint: Checkpoint, logged: Event | None) -> Event:
    """Return the newest event as it is in the log, with the mirror's own changelog after it.

    Of an expired one only what the next event follows from is known; should the log lose it, mirrors compare with the master.
    """
    after = Tip(length=checkpoint.length, node=checkpoint.tip)
    if logged is not None and logged.id == checkpoint.id:
        return replace(logged, after=after)
    names = {name: getattr(checkpoint, name) for name in NamedEvent.list_members()}
    return Event(
        **names,
        type=Type.SYNC,
        previous=None if checkpoint.seq == 1 else "0" * 32,
        time=checkpoint.time,
        source="promoted",
        changes=NO_CHANGES,
        after=after,
        settings=MasterSettings(),
        detail={"reason": "promoted", "bootstrap": "false"},
    )
