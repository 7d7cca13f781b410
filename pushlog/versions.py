# SPDX-License-Identifier: GPL-2.0-or-later
"""The running Mercurial, and the equivalents of 7.2's modules in older ones.

The code is written for 7.2. Modules that an older Mercurial has elsewhere are attributes of this module, loaded when used;
functions that it has elsewhere, or with other parameters, are in `_OLDER`, for `seams`.

Rule of this file: no other compares versions, or imports modules that only some of them have (`tests/house/test_seams.py`).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from mercurial import util

if TYPE_CHECKING:
    from mercurial.hgweb import hgweb_mod_inner as hgweb_mod_inner
    from mercurial.localrepo import localrepository
    from mercurial.repo import factory as factory
    from mercurial.smartset import abstractsmartset
    from mercurial.transaction import transaction as Transaction

Wrapper = Callable[..., Any]


def _read_version() -> tuple[int, int] | None:
    """Return two numbers of Mercurial's version, None for an unversioned build.

    `util.versiontuple` compiles a pattern for that, for which each push would pay.
    """
    major, _, rest = util.version().partition(b".")
    minor = rest[: len(rest) - len(rest.lstrip(b"0123456789"))]
    return (int(major), int(minor or 0)) if major.isdigit() else None


RUNNING = _read_version()
# The oldest Mercurial on which the pushlog is tested.
OLDEST = (6, 3)
# The oldest for replication: on older ones the guards of a mirror are not proven.
OLDEST_REPLICATED = (6, 9)
# The one for which the code is written.
_NEWEST = (7, 2)

# Module of 7.2 → where an older Mercurial has its functions.
_MOVED = {
    "mercurial.cmd_impls.clone": "mercurial.hg",
    "mercurial.hgweb.hgweb_mod_inner": "mercurial.hgweb.hgweb_mod",
    "mercurial.hgweb.hgwebdir_mod_inner": "mercurial.hgweb.hgwebdir_mod",
    "mercurial.repo.factory": "mercurial.hg",
    "mercurial.revset_predicates": "mercurial.revset",
}
# Name in this module → module of 7.2.
_OFFERED = {"factory": "mercurial.repo.factory", "hgweb_mod_inner": "mercurial.hgweb.hgweb_mod_inner"}


def is_older_than(version: tuple[int, int]) -> bool:
    """Return whether this Mercurial is older; an unversioned build counts as such."""
    return RUNNING is None or version > RUNNING


_IS_OLD = is_older_than(_NEWEST)
if is_older_than((7, 1)):
    _MOVED["mercurial.utils.dag_util"] = "mercurial.dagop"


def __getattr__(name: str) -> Any:
    if name not in _OFFERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _load(_OFFERED[name])


def _name_here(module: str) -> str:
    return _MOVED.get(module, module) if _IS_OLD else module


def _load(module: str) -> Any:
    return importlib.import_module(_name_here(module))


def is_loaded(module: str) -> bool:
    """Return whether this process has imported a module of 7.2, or its older form."""
    return _name_here(module) in sys.modules


def substring_matcher(pattern: bytes) -> Callable[[bytes], bool]:
    """Return a function that finds a pattern of revsets in a text, in any case."""
    _kind, _pattern, matches = _load("mercurial.revset_predicates")._substringmatcher(pattern, casesensitive=False)
    found: Callable[[bytes], bool] = matches
    return found


def drop_hidden(subset: abstractsmartset, revisions: set[int]) -> set[int]:
    """Remove the revisions that ``subset`` hides, with a Mercurial before 7.2.

    6.3 does not drop hidden revisions in an intersection with all revisions (`tests/pushlog/places.t`).
    """
    return revisions - getattr(subset, "_hiddenrevs", frozenset()) if _IS_OLD else revisions


def initialize() -> None:
    """Have Mercurial register its commands and parts of bundles.

    A program that only loads extensions has none of them before. An older Mercurial registers them as it is imported. Call this
    before a repository is opened, which registers keywords of the same names: afterwards it raises ProgrammingError.
    """
    if not _IS_OLD:
        importlib.import_module("mercurial.initialization").init()


def supported_requirements() -> set[bytes]:
    """Return the set of requirements with which this process opens repositories."""
    if _IS_OLD:
        known = importlib.import_module("mercurial.localrepo").localrepository._basesupported
    else:
        known = importlib.import_module("mercurial.repo.requirements").BASE_SUPPORTED
    supported: set[bytes] = known
    return supported


def new_requirements(ui: Any, options: Mapping[bytes, Any]) -> set[bytes]:
    """Return the requirements that a repository made with these options would have."""
    if _IS_OLD:
        local = importlib.import_module("mercurial.localrepo")
        complete, choose = local.defaultcreateopts, local.newreporequirements
    else:
        creation = importlib.import_module("mercurial.repo.creation")
        complete, choose = creation.default_create_opts, creation.new_repo_requirements
    requirements: set[bytes] = choose(ui, complete(ui, dict(options)))
    return requirements


def read_revisions(log: Any, first: int, last: int) -> tuple[int, bytes, bool]:
    """Read neighbouring revisions of a revlog, as they are stored.

    Returns where their bytes begin, the bytes, and whether entries of the index lie between them. 6.3 has no `_inner`.
    """
    if inner := getattr(log, "_inner", None):
        return *inner.get_segment_for_revs(first, last), inner.inline
    return *log._getsegmentforrevs(first, last), log._inline


def temporary_files(tr: Transaction) -> Iterable[bytes]:
    """Return the files that a transaction removes at its end; none in 6.3."""
    files: Iterable[bytes] = getattr(tr, "_tmp_files", ())
    return files


def remove_undo_files(repo: localrepository) -> None:
    """Remove all that could roll back the last transaction."""
    if is_older_than((6, 4)):
        old: Any = repo
        for vfs, name in old.undofiles():
            vfs.tryunlink(name)
    else:
        importlib.import_module("mercurial.transaction").cleanup_undo_files(repo.ui.warn, repo.vfs_map)


class SeamPlace:
    """Where a function of 7.2 is in this Mercurial.

    `parameters` are the parameters of the function there. `adapt` fits a wrapper written for 7.2 to that function.
    """

    __slots__ = ("adapt", "module", "name", "parameters")

    def __init__(
        self, module: str, name: str, parameters: str, adapt: Callable[[Wrapper], Wrapper] = lambda wrapper: wrapper
    ) -> None:
        self.module, self.name, self.parameters, self.adapt = module, name, parameters, adapt


def find_places(module: str, name: str, parameters: str) -> tuple[SeamPlace, ...]:
    """Return the functions to wrap here: that of 7.2, or those that do its work."""
    if _IS_OLD:
        key = f"{module}.{name}"
        for version, older in _OLDER.items():
            if key in older and is_older_than(version):
                return older[key]
    return (SeamPlace(_name_here(module), name, parameters),)


def _choose_dispatched(wrapper: Wrapper) -> Wrapper:
    """Choose the view for commands from another process, as `server_filtername` does."""

    def choose(orig: Wrapper, repo: localrepository, proto: Any, command: bytes, accesshidden: bool = False) -> Any:
        def name_view(asked: localrepository, hidden: bool) -> bytes | None:
            # Unfiltered, because an extension may limit the views of a view.
            view: bytes | None = orig(asked.unfiltered(), proto, command, hidden).filtername
            return view

        return repo.filtered(wrapper(name_view, repo, accesshidden))

    return choose


def _choose_local(wrapper: Wrapper) -> Wrapper:
    """Choose the view of a peer in this process, unless it is the configured one.

    A peer of 7.2 serves the configured one, an older one always `served`.
    """

    def choose(orig: Wrapper, self: Any, repo: localrepository, *arguments: Any, **options: Any) -> None:
        orig(self, repo, *arguments, **options)
        configured = repo.ui.config(b"server", b"view")
        wants_hidden = self._repo.filtername == b"served.hidden" and configured == b"served"
        configured = b"served.hidden" if wants_hidden else configured
        view = wrapper(lambda *_: configured, repo, wants_hidden)
        if view != configured:
            self._repo = repo.filtered(view)

    return choose


def _join_lines(wrapper: Wrapper) -> Wrapper:
    """Fit a wrapper that gives lines to a function that gives them as one text."""

    def join(orig: Wrapper, repo: localrepository) -> bytes:
        return b"".join(wrapper(lambda asked: orig(asked).splitlines(keepends=True), repo))

    return join


_STREAM = "repo includes excludes includeobsmarkers"
# Before this version → function of 7.2 → its equivalents; the oldest version first.
_OLDER: Mapping[tuple[int, int], Mapping[str, tuple[SeamPlace, ...]]] = {
    (6, 9): {
        "mercurial.transaction.rollback": (
            SeamPlace("mercurial.transaction", "rollback", "opener vfsmap file report checkambigfiles"),
        ),
        # It removes no backups of the last transaction.
        "mercurial.transaction.read_backup_files": (),
    },
    _NEWEST: {
        "mercurial.bundle2.addpartbundlestream2": (
            SeamPlace("mercurial.bundle2", "addpartbundlestream2", "bundler repo kwargs"),
        ),
        "mercurial.configuration.rcutil.get_shared_vfs": (
            SeamPlace("mercurial.localrepo", "_getsharedvfs", "hgvfs requirements"),
        ),
        "mercurial.exchanges.bundle_cache.get_manifest_lines": (
            SeamPlace("mercurial.bundlecaches", "get_manifest", "repo", _join_lines),
        ),
        "mercurial.exchanges.peer.server_filtername": (
            SeamPlace(
                "mercurial.wireprotov1server", "getdispatchrepo", "repo proto command accesshidden", _choose_dispatched
            ),
            SeamPlace("mercurial.localrepo", "localpeer.__init__", "self repo caps path remotehidden", _choose_local),
        ),
        "mercurial.localrepo.localrepository.file": (
            SeamPlace("mercurial.localrepo", "revlogfilestorage.file", "self path ..."),
        ),
        "mercurial.streamclone.generatev2": (SeamPlace("mercurial.streamclone", "generatev2", _STREAM),),
        "mercurial.streamclone.generatev3": (SeamPlace("mercurial.streamclone", "generatev3", _STREAM),),
    },
}
