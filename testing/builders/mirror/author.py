# SPDX-License-Identifier: GPL-2.0-or-later
"""A master reduced to what a mirror sees of it: real changesets, and their events in the log, written in process.

For tests and benchmarks of mirrors: events come as fast as Mercurial makes them, and can be forged. Its repositories have an
outbox, so a web server with the extension lets mirrors copy them; nothing of a master's other machinery runs here.
"""

import copy
import dataclasses
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mercurial import context, extensions, phases, repair, requirements, scmutil
from mercurial import ui as uimod
from mercurial.node import nullid

from hgext.vcsreplicator.hg import bundles, observe
from hgext.vcsreplicator.log import EVENTS, Log, NewRecord
from hgext.vcsreplicator.log.blobs import BlobStore
from hgext.vcsreplicator.outbox.entry import Entry, MirrorNeeds
from hgext.vcsreplicator.outbox.file import Outbox
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.digest import START, advance, node_set
from hgext.vcsreplicator.words.event import (
    OFFERS_NO_MARKERS,
    Changes,
    Event,
    MasterSettings,
    PhaseMove,
    PushEntry,
    Type,
)
from pushlog import api
from pushlog.versions import factory, initialize

NOTHING = Changes(added=None)


class Author:
    """One repository of a master, and the events that its changes made; `send` puts them into the log."""

    def __init__(self, root: Path, path: str, *, generation: int = 1, blobs: BlobStore | None = None) -> None:
        initialize()
        self.ui = ui = uimod.ui.load()
        for section, name, value in (
            ("ui", "quiet", "yes"),
            ("experimental", "evolution", "all"),
            ("phases", "publish", "no"),
            ("extensions", "pushlog", ""),
        ):
            ui.setconfig(section.encode(), name.encode(), value.encode())
        extensions.loadall(ui)
        extensions.populateui(ui)
        self.path, self.generation, self._blobs = path, generation, blobs
        self.folder = root / path
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self.repo: Any = factory.repository(ui, os.fsencode(self.folder), create=True).unfiltered()
        self.repository, self.incarnation = secrets.token_hex(16), secrets.token_hex(16)
        self.seq, self.digest, self.pushes = 0, START, 0
        self.last: str | None = None
        self.frames: list[tuple[Event, bytes]] = []
        self.event(Type.CREATED, detail={"origin": "init"})

    def copy(self, root: Path) -> "Author":
        """The same repository with the same events, below another root."""
        copied = copy.copy(self)
        copied.folder, copied.frames = root / self.path, list(self.frames)
        shutil.copytree(self.folder, copied.folder)
        copied.repo = factory.repository(self.ui, os.fsencode(copied.folder)).unfiltered()
        return copied

    def event(self, kind: Type, changes: Changes = NOTHING, bundle: bytes | None = None, **members: Any) -> Event:
        """The next event, which no transaction of this class makes."""
        with self.repo.lock(), self.repo.transaction(b"event") as tr:
            event = self._tell(tr, kind, changes, **members)
        return self._keep(event, bundle)

    def push(
        self,
        files: Mapping[str, bytes] | None = None,
        *,
        parent: str | None = None,
        count: int = 1,
        phase: int = 0,
        user: str = "tester@example",
    ) -> Event:
        """Changesets on top of each other, as one push."""
        first = len(self.repo.changelog)
        self.pushes += 1
        push = PushEntry(id=self.pushes, user=user, date=1_700_000_000 + self.pushes)
        with self.repo.wlock(), self.repo.lock(), self.repo.transaction(b"push") as tr:
            below = bytes.fromhex(parent) if parent is not None else self.repo.changelog.tip()
            for number in range(count):
                content = files or {f"file{number % 7}": f"{self.path} {self.pushes} {number}\n".encode()}
                below = self.commit(below, content)
            nodes = [self.repo.changelog.node(rev) for rev in range(first, len(self.repo.changelog))]
            phases.advanceboundary(self.repo, tr, phase, nodes)
            phases.retractboundary(self.repo, tr, phase, nodes)
            names = [node.hex().encode() for node in nodes]
            api.record_replicated(self.repo, tr, push.id, user.encode(), push.date, names)
            event = self._tell(tr, Type.CHANGED, observe.observe(self.repo, tr, push=push))
        return self._keep(event, b"".join(bundles.make_bundle(self.repo, first, len(self.repo.changelog))))

    def bookmark(self, name: str, node: str | None) -> Event:
        """A bookmark moved, by a push without changesets."""
        with self.repo.wlock(), self.repo.lock(), self.repo.transaction(b"bookmark") as tr:
            value = None if node is None else bytes.fromhex(node)
            self.repo._bookmarks.applychanges(self.repo, tr, [(name.encode(), value)])
            event = self._tell(tr, Type.CHANGED, observe.observe(self.repo, tr))
        return self._keep(event)

    def publish(self, node: str) -> Event:
        """A draft changeset and its ancestors become public."""
        with self.repo.wlock(), self.repo.lock(), self.repo.transaction(b"phase") as tr:
            observe.move_phases(self.repo, tr, [PhaseMove(phase=0, nodes=(node,))])
            event = self._tell(tr, Type.CHANGED, observe.observe(self.repo, tr))
        return self._keep(event)

    def move_above_secret(self, phase: int, node: str) -> None:
        """A changeset becomes archived or internal; no event says so, as when a Mercurial without the extension does it."""
        formats = {requirements.ARCHIVED_PHASE_REQUIREMENT, requirements.INTERNAL_PHASE_REQUIREMENT}
        with self.repo.wlock(), self.repo.lock(), self.repo.transaction(b"outside") as tr:
            scmutil.writereporequirements(self.repo, self.repo.requirements | formats)
            phases.retractboundary(self.repo, tr, phase, [bytes.fromhex(node)])

    def obsolete(self, node: str, *successors: str) -> Event:
        """A draft changeset is pruned, or replaced by others."""
        new = tuple(map(bytes.fromhex, successors))
        with self.repo.wlock(), self.repo.lock(), self.repo.transaction(b"prune") as tr:
            self.repo.obsstore.create(tr, bytes.fromhex(node), new, date=(1.0, 0), metadata={b"user": b"tester"})
            event = self._tell(tr, Type.CHANGED, observe.observe(self.repo, tr))
            markers = observe.encode_markers(observe.markers_since(tr, observe.start(tr)))
        return self._keep(event, b"".join(bundles.make_bundle(self.repo, 0, 0, markers)))

    def strip(self, node: str) -> Event:
        """A changeset and its descendants go."""
        with self.repo.wlock(), self.repo.lock():
            changelog = self.repo.changelog
            before = {changelog.node(rev).hex() for rev in changelog.headrevs()}
            gone = [changelog.node(rev) for rev in self.repo.revs(b"%s::", node.encode())]
            repair.strip(self.repo.ui, self.repo, [bytes.fromhex(node)], backup=False)
            self.repo.invalidateall()
            changelog = self.repo.changelog
            after = [changelog.node(rev).hex() for rev in changelog.headrevs()]
            changes = Changes(
                added=None,
                removed=node_set(gone),
                heads_added=tuple(head for head in after if head not in before),
                heads_removed=tuple(sorted(before - set(after))),
            )
        return self.event(Type.STRIPPED, changes)

    def censor(self, file: str) -> Event:
        """The first revision of a file loses its content."""
        with self.repo.wlock(), self.repo.lock(), self.repo.transaction(b"censor") as tr:
            log = self.repo.file(file.encode())
            node = log.node(0)
            log.censorrevision(tr, [node], tombstone=b"")
        self.repo.invalidateall()
        return self.event(Type.CENSORED, detail={"file": file, "node": node.hex()})

    def rename(self, root: Path, path: str) -> Event:
        """The repository lives at another path from now on."""
        former, self.path = self.path, path
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        self.folder = self.folder.rename(root / path)
        self.repo = factory.repository(self.ui, os.fsencode(self.folder)).unfiltered()
        return self.event(Type.RENAMED, detail={"from": former})

    @property
    def tip(self) -> str:
        """The newest changeset."""
        return observe.tip(self.repo).node

    def messages(self, start: int = 0) -> list[NewRecord]:
        """The records of its events from the `start`th on."""
        return [
            NewRecord(
                topic=EVENTS, key=self.repository, value=frame, headers=wire.headers(event, "hg://master.example")
            )
            for event, frame in self.frames[start:]
        ]

    def send(self, log: Log, start: int = 0) -> None:
        """Appends the events from the `start`th on to the log."""
        log.append(self.messages(start))

    def commit(self, below: bytes, content: Mapping[str, bytes]) -> bytes:
        def file(_: Any, memory: Any, path: bytes) -> Any:
            return context.memfilectx(self.repo, memory, path, content[path.decode()])

        names = [name.encode() for name in content]
        memory = context.memctx(
            self.repo, (below, nullid), b"change", names, file, user=b"author", date=b"%d 0" % self.pushes
        )
        return self.repo.commitctx(memory)  # type: ignore[no-any-return]

    def _tell(self, tr: Any, kind: Type, changes: Changes, **members: Any) -> Event:
        self.digest = advance(self.digest, kind, changes)
        self.seq += 1
        event = Event(
            type=kind,
            repository=self.repository,
            incarnation=self.incarnation,
            path=self.path,
            generation=self.generation,
            seq=self.seq,
            id=secrets.token_hex(16),
            previous=self.last,
            digest=self.digest,
            time=1.0,
            source="serve",
            changes=changes,
            after=observe.tip(self.repo),
            settings=MasterSettings(evolution=OFFERS_NO_MARKERS, publishing=True),
        )
        event = dataclasses.replace(event, **members)
        self.last = event.id
        Outbox(self.repo.svfs).append(tr, [Entry(event=event, needs=MirrorNeeds.NOTHING)])
        return event

    def _keep(self, event: Event, bundle: bytes | None = None) -> Event:
        if bundle is not None and len(bundle) > wire.INLINE_LIMIT and self._blobs is not None:
            frame = wire.encode(event, self._blobs.put([bundle]))
        else:
            frame = wire.encode(event, None if bundle is None else wire.inline(bundle), bundle or b"")
        self.frames.append((event, frame))
        return event
