# SPDX-License-Identifier: GPL-2.0-or-later
"""What Mercurial is told when it loads the extension: configuration, commands, and what each repository gets, by role."""

import functools
from typing import Any

from mercurial import extensions, hg, localrepo, registrar, repair, revlog, transaction

from pushlog import seams, streams

from . import settings
from .commands import cmdtable

__all__ = ["cmdtable", "configtable", "extsetup", "reposetup", "uisetup"]

seams.check_version()

configtable: dict[Any, Any] = {}

_configitem = registrar.configitem(configtable)
for _key in settings.KEYS:
    _configitem(settings.SECTION, _key, default=list if _key == b"snapshot-allow" else None)

_setup = seams.Setup("vcsreplicator")


def uisetup(ui: Any) -> None:
    """Guards what a mirror serves, whoever is one; where none is, pushes are spared the search for cyclic garbage."""
    from .serving import guards

    _setup.run(guards.install)
    if ui.config(settings.SECTION, b"role") != b"mirror":
        _setup.run(_collect_rarely)


def _collect_rarely() -> None:
    """Has Python look for cycles less often, and not once more at the end (`docs/decisions/rare-collections.md`).

    Not in hgweb, which throws away a whole repository object, index and all, after each change (`test_hgweb_memory.py`).
    """
    import atexit
    import gc

    before = gc.get_threshold()
    gc.set_threshold(20_000, 10, 10)
    atexit.register(gc.freeze)

    def kept_open(original: Any, *arguments: Any) -> None:
        gc.set_threshold(*before)
        original(*arguments)

    seams.wrap(hg, "cachedlocalrepo.__init__", kept_open)


def extsetup(ui: Any) -> None:
    """Wraps what a master must see; each wrapper acts on repositories of a master only."""
    _setup.run(functools.partial(_wrap, locking=bool(ui.config(settings.SECTION, b"lock"))))


def _wrap(*, locking: bool) -> None:
    from mercurial.cmd_impls import clone

    from pushlog.store import journal

    from . import requirement
    from .master import creation, offer, transactions

    journal.install()
    offer.register()
    streams.refuse_pushed()
    requirement.register(locking=locking)
    seams.check(localrepo, "localrepository.transaction", "localrepository.rollback")
    seams.check(transaction, "transaction.add", "transaction.addbackup")
    seams.wrap(repair, "strip", _in_lifecycle("strip"))
    seams.wrap(repair, "deleteobsmarkers", _in_lifecycle("delete_markers"))
    seams.wrap(revlog, "revlog.censorrevision", _in_lifecycle("censor"))
    seams.wrap(clone, "clone", transactions.after_clone)
    seams.wrap(localrepo, "createrepository", creation.note_creation)


def _in_lifecycle(name: str) -> Any:
    """A wrapper of `lifecycle`, which is loaded when it is called: no push needs it."""

    def wrapper(*arguments: Any, **keywords: Any) -> Any:
        from .master import lifecycle

        return getattr(lifecycle, name)(*arguments, **keywords)

    return wrapper


def reposetup(ui: Any, repo: Any) -> None:
    """Makes a master's repository tell its changes, and a mirror's show what was released; refuses where it cannot."""
    if not repo.local():
        return
    _setup.check(repo)
    _check_pushlog(repo.ui)
    if settings.role(repo.ui) is settings.MachineRole.MIRROR:
        from .serving import guards, views

        _setup.run(guards.install_views)
        _setup.check(repo)
        views.reposetup(ui, repo)
        return
    from .master import transactions

    transactions.set_up(repo, settings.read(repo.ui))


def _check_pushlog(ui: Any) -> None:
    """Refuses a repository if hgrc names the pushlog and Mercurial, with a warning, goes on without it."""
    place = ui.config(b"extensions", b"pushlog")
    if place is None or place.startswith(b"!"):
        return
    try:
        extensions.find(b"pushlog")
    except KeyError:
        raise seams.refusal("pushlog", "it is not loaded") from None
