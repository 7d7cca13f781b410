# SPDX-License-Identifier: GPL-2.0-or-later
"""What Mercurial is told when it loads the extension: configuration, commands, and what each repository gets, by role."""

from typing import Any

from mercurial import extensions, hg, localrepo, registrar, repair, revlog

from pushlog import streams

from . import settings
from .commands import cmdtable

__all__ = ["cmdtable", "configtable", "extsetup", "reposetup", "uisetup"]

configtable: dict[Any, Any] = {}

_configitem = registrar.configitem(configtable)
for _key in settings.KEYS:
    _configitem(settings.SECTION, _key, default=list if _key == b"snapshot-allow" else None)


def uisetup(ui: Any) -> None:
    """Views and guards of a mirror; a master's pushes are spared the search for cyclic garbage."""
    if ui.config(settings.SECTION, b"role") == b"mirror":
        from . import visibility

        visibility.uisetup(ui)
    else:
        _collect_rarely()


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

    extensions.wrapfunction(hg.cachedlocalrepo, "__init__", kept_open)


def extsetup(ui: Any) -> None:
    """Wraps what a master must see; each wrapper acts on repositories of a master only."""
    from mercurial.cmd_impls import clone

    from pushlog import journal

    from . import creation, master, offer, requirement

    journal.install()
    offer.register()
    streams.refuse_pushed()
    requirement.register(locking=bool(ui.config(settings.SECTION, b"lock")))
    extensions.wrapfunction(repair, "strip", _in_lifecycle("strip"))
    extensions.wrapfunction(repair, "deleteobsmarkers", _in_lifecycle("delete_markers"))
    extensions.wrapfunction(revlog.revlog, "censorrevision", _in_lifecycle("censor"))
    extensions.wrapfunction(clone, "clone", master.after_clone)
    extensions.wrapfunction(localrepo, "createrepository", creation.note_creation)


def _in_lifecycle(name: str) -> Any:
    """A wrapper of `lifecycle`, which is loaded when it is called: no push needs it."""

    def wrapper(*arguments: Any, **keywords: Any) -> Any:
        from . import lifecycle

        return getattr(lifecycle, name)(*arguments, **keywords)

    return wrapper


def reposetup(ui: Any, repo: Any) -> None:
    """Makes a master's repository tell its changes, and a mirror's show what was released."""
    if not repo.local():
        return
    if settings.role(repo.ui) is settings.Role.MIRROR:
        from . import visibility

        visibility.reposetup(ui, repo)
        return
    from . import master

    master.set_up(repo, settings.read(repo.ui))
