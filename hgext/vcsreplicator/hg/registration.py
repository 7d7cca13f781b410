# SPDX-License-Identifier: GPL-2.0-or-later
"""The functions that Mercurial calls when it loads the extension.

It registers configuration and commands, and sets up each repository by role.
"""

from __future__ import annotations

import functools
from typing import Any

from mercurial import bundle2, registrar
from mercurial.localrepo import localrepository
from mercurial.ui import ui as Ui

from pushlog import seams, store, streams, versions
from pushlog.store import regular

from . import settings
from .commands import cmdtable

__all__ = ["cmdtable", "configtable", "extsetup", "reposetup", "uisetup"]

seams.check_version(versions.OLDEST_REPLICATED)

_OURS = __package__.removesuffix(".hg")
_MASTER = f"{__package__}.master"
_STRIPPING = f"{_MASTER}.acts.stripping"

# The modules that write an event: those that a module imports come before it.
_OF_AN_EVENT = (
    *(f"{_OURS}.{name}" for name in ("relay.client", "words.event", "words.digest")),
    *(f"{_OURS}.outbox.{name}" for name in ("entry", "folder", "file")),
    *(f"{__package__}.{name}" for name in ("text", "observe")),
    *(f"{_MASTER}.{name}" for name in ("creation", "formats", "pushes", "refusals", "durability", "capture")),
    *(f"{_MASTER}.{name}" for name in ("reporting", "transactions")),
    "pushlog.store.disk",
    "pushlog.store.unhooked",
    "pushlog.api",
)

configtable: dict[Any, Any] = {}

_configitem = registrar.configitem(configtable)
for _key in settings.KEYS:
    _configitem(settings.SECTION, _key, default=list if _key == b"snapshot-allow" else None)

# Mercurial reads it some fifty times in a push, and searches for it if it is not registered.
_configitem(b"hooks", b"priority.precommit.vcsreplicator", default=0)

_setup = seams.Setup("vcsreplicator")


def uisetup(ui: Ui) -> None:
    """Let pushes collect garbage rarely, on a master."""
    if ui.config(settings.SECTION, b"role") != b"mirror":
        _setup.run(_collect_rarely)


def _collect_rarely() -> None:
    """Have Python collect cycles less often, and not once more at the end.

    The reason is in `docs/decisions/rare-collections.md`. Not in hgweb, which throws away a whole repository object, index
    included, after each change (`tests/hg/master/test_web_memory.py`).
    """
    import atexit
    import gc

    before = gc.get_threshold()
    gc.set_threshold(20_000, 10, 10)
    atexit.register(gc.freeze)

    @functools.cache
    def load_pages() -> None:
        # What a process of pages answers to mirrors.
        from .master import offer  # noqa: F401
        from .pages import files

        files.install()
        seams.finish_imports()

    def prepare_pages(original: Any, *arguments: Any) -> None:
        gc.set_threshold(*before)
        load_pages()
        original(*arguments)

    if not seams.serves_one_client():
        seams.wrap("mercurial.hg", "cachedlocalrepo.__init__", prepare_pages)


def extsetup(ui: Ui) -> None:
    """Wrap the functions that a master observes; others' repositories are unaffected."""
    locking, role = (ui.config(settings.SECTION, key) for key in (b"lock", b"role"))
    _setup.run(functools.partial(_wrap_seams, locking=bool(locking), is_master=role != b"mirror"))


def _wrap_seams(*, locking: bool, is_master: bool) -> None:
    from . import pages, parts, requirement, wirecommands
    from .pages import damage
    from .trusted import rule

    regular.install()
    rule.install()
    store.complete_journals()
    wirecommands.register()
    streams.refuse_pushed()
    _guard_changegroups()
    requirement.register(locking=locking)
    seams.check("mercurial.localrepo", "localrepository.transaction", "localrepository.rollback")
    seams.check("mercurial.transaction", "transaction.add", "transaction.addbackup")
    pages.hide_names()
    seams.wrap("mercurial.exchange", "unbundle", parts.check_push)
    seams.wrap("mercurial.exchange", "unbundle", damage.refuse_damaged)
    seams.wrap("mercurial.exchange", "unbundle", seams.loading(f"{_MASTER}.refusals", "name_full_disk"))
    seams.wrap("mercurial.repair", "strip", seams.loading(_STRIPPING, "strip"))
    seams.wrap("mercurial.repair", "deleteobsmarkers", seams.loading(_STRIPPING, "delete_markers"))
    seams.wrap("mercurial.revlog", "revlog.censorrevision", seams.loading(_STRIPPING, "censor"))
    seams.wrap("mercurial.cmd_impls.clone", "clone", seams.loading(f"{_MASTER}.transactions", "after_clone"))
    seams.wrap("mercurial.localrepo", "createrepository", seams.loading(f"{_MASTER}.creation", "note_creation"))
    if not seams.serves_one_client():  # its lock counts until it ends
        from .serving import left_locks

        left_locks.install()
    elif is_master:
        from pushlog import preload

        from .pages import remote_lines

        preload.load_while_waiting(*_OF_AN_EVENT)
        seams.wrap("mercurial.wireprotoserver", "_runsshserver", remote_lines.serve)


def _guard_changegroups() -> None:
    """Wrap the handler of changegroups, which Mercurial keeps in a table."""
    handlers = bundle2.parthandlermapping
    if b"changegroup" not in handlers:
        raise seams.MissingSeam("mercurial.bundle2.parthandlermapping has no part changegroup")
    guarded = functools.partial(seams.loading(f"{_MASTER}.formats", "handle_changegroup"), handlers[b"changegroup"])
    handlers[b"changegroup"] = functools.wraps(handlers[b"changegroup"])(guarded)  # with its `params`


def reposetup(ui: Ui, repo: localrepository) -> None:
    """Set up a master's or a mirror's repository, or refuse what cannot be guarded.

    An archive leaves out subrepositories: Mercurial takes them from disk, whole, and fetches what it does not find there, from an
    address that a pusher chose. An account could ask for that in an hgrc, trusted or not.
    """
    if not repo.local():
        return
    _setup.check(repo)
    _check_pushlog(repo.ui)
    settings.take_posted_arguments(repo.ui)
    repo.ui.setconfig(b"web", b"archivesubrepos", False, b"vcsreplicator")
    if settings.role(repo.ui) == "mirror":
        # Not at load time: most processes are a master's, and each push would pay for it.
        _setup.run(_install_guards)
        _setup.check(repo)
        from .serving import repository

        repository.reposetup(repo)
        return
    from . import opening

    opening.set_up(repo, settings.read(repo.ui))


def _install_guards() -> None:
    # Loaded within the set-up: a module that this Mercurial lacks must refuse repositories. `dir` forces the demand import, which
    # is not safe in two threads at once.
    from .serving import caches, guards, repository

    dir(caches)
    dir(repository)
    guards.install()


def _check_pushlog(ui: Ui) -> None:
    """Refuse a repository if Mercurial goes on without the pushlog that hgrc names."""
    place = ui.config(b"extensions", b"pushlog")
    if place is None or place.startswith(b"!"):
        return
    if seams.find_extension(b"pushlog") is None:
        raise seams.refusal("pushlog", "it is not loaded")
