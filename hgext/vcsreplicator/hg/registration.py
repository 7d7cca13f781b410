# SPDX-License-Identifier: GPL-2.0-or-later
"""What Mercurial calls when it loads the extension: configuration, commands, and each repository's set-up, by role."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mercurial import extensions, registrar
from mercurial.localrepo import localrepository
from mercurial.ui import ui as Ui

from pushlog import seams, streams, versions

from . import settings
from .commands import cmdtable

__all__ = ["cmdtable", "configtable", "extsetup", "reposetup", "uisetup"]

seams.check_version(versions.OLDEST_REPLICATED)

configtable: dict[Any, Any] = {}

_configitem = registrar.configitem(configtable)
for _key in settings.KEYS:
    _configitem(settings.SECTION, _key, default=list if _key == b"snapshot-allow" else None)

_setup = seams.Setup("vcsreplicator")


def uisetup(ui: Ui) -> None:
    """Guard what a mirror serves; on a master, let pushes collect garbage rarely."""
    _setup.run(_install_guards)
    if ui.config(settings.SECTION, b"role") != b"mirror":
        _setup.run(_collect_rarely)


def _install_guards() -> None:
    # Loaded within the set-up: a module that this Mercurial lacks must refuse repositories.
    from .serving import guards

    guards.install()


def _collect_rarely() -> None:
    """Have Python collect cycles less often, and not once more at the end (`docs/decisions/rare-collections.md`).

    Not in hgweb, which throws away a whole repository object, index included, after each change
    (`tests/hg/master/test_web_memory.py`).
    """
    import atexit
    import gc

    before = gc.get_threshold()
    gc.set_threshold(20_000, 10, 10)
    atexit.register(gc.freeze)

    def restore_threshold(original: Any, *arguments: Any) -> None:
        gc.set_threshold(*before)
        original(*arguments)

    seams.wrap("mercurial.hg", "cachedlocalrepo.__init__", restore_threshold)


def extsetup(ui: Ui) -> None:
    """Wrap what a master must see; each wrapper acts on repositories of a master only."""
    _setup.run(functools.partial(_wrap_seams, locking=bool(ui.config(settings.SECTION, b"lock"))))


def _wrap_seams(*, locking: bool) -> None:
    from pushlog.store import journal

    from . import requirement
    from .master import creation, offer, transactions

    journal.install()
    offer.register()
    streams.refuse_pushed()
    requirement.register(locking=locking)
    seams.check("mercurial.localrepo", "localrepository.transaction", "localrepository.rollback")
    seams.check("mercurial.transaction", "transaction.add", "transaction.addbackup")
    seams.wrap("mercurial.repair", "strip", _load_stripping("strip"))
    seams.wrap("mercurial.repair", "deleteobsmarkers", _load_stripping("delete_markers"))
    seams.wrap("mercurial.revlog", "revlog.censorrevision", _load_stripping("censor"))
    seams.wrap("mercurial.cmd_impls.clone", "clone", transactions.after_clone)
    seams.wrap("mercurial.localrepo", "createrepository", creation.note_creation)


def _load_stripping(name: str) -> Callable[..., Any]:
    """Return a wrapper that loads `stripping` when called: pushes do not need it."""

    def wrapper(*arguments: Any, **keywords: Any) -> Any:
        from .master.acts import stripping

        return getattr(stripping, name)(*arguments, **keywords)

    return wrapper


def reposetup(ui: Ui, repo: localrepository) -> None:
    """Set up a master's or a mirror's repository, or refuse what cannot be guarded."""
    if not repo.local():
        return
    _setup.check(repo)
    _check_pushlog(repo.ui)
    if settings.role(repo.ui) is settings.MachineRole.MIRROR:
        from .serving import guards, repository

        _setup.run(guards.install_views)
        _setup.check(repo)
        repository.reposetup(repo)
        return
    from .master import transactions

    transactions.set_up(repo, settings.read(repo.ui))


def _check_pushlog(ui: Ui) -> None:
    """Refuse a repository if Mercurial goes on without the pushlog that hgrc names."""
    place = ui.config(b"extensions", b"pushlog")
    if place is None or place.startswith(b"!"):
        return
    try:
        extensions.find(b"pushlog")
    except KeyError:
        raise seams.refusal("pushlog", "it is not loaded") from None
