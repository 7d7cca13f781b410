# SPDX-License-Identifier: GPL-2.0-or-later
"""Every private function of Mercurial that these extensions wrap or override, and private attributes beside them.

The table has the parameters of each function. Mercurial changes such functions without notice, and after a failed set-up prints
a warning and goes on: pushes unrecorded, mirrors unguarded. So a set-up must fail closed. `wrap` wraps each function. It refuses
a function that is not in the table, is missing or takes other parameters, or whose class lacks an attribute of the second table.
`Setup` keeps the failure, and refuses every repository with it. A process checks only the seams that it loads.

Rule of this file: only `wrap` and `wrapped` wrap anything (`tests/house/test_seams.py`).
"""

from __future__ import annotations

import functools
import importlib
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from mercurial import error, extensions, util
from mercurial.localrepo import localrepository

from . import versions

# Module of Mercurial 7.2 → function → its parameters in order; "..." ends a list that may go on. `versions` says where an older
# Mercurial has it.
SEAMS = {
    "hgext.largefiles.lfutil": {"storepath": "repo hash forcelocal"},
    "hgext3rd.evolve.obsdiscovery": {"_obshashcache._db": "self"},
    "hgext3rd.evolve.stablerangecache": {"stablerangesqlbase._db": "self"},
    "mercurial.archival": {
        "archive": "repo dest node kind decode match prefix mtime subrepos",
        "zipit.addfile": "self name mode islink data",
    },
    "mercurial.bookmarks": {"_getbkfile": "repo"},
    "mercurial.bundle2": {
        "addpartbundlestream2": "bundler repo narrow_matcher stream store_fingerprint kwargs",
    },
    "mercurial.changelog": {
        "changelog._head_node_ids": "self",
        "changelog.headrevs": "self revs stop_rev",
        "changelog.node": "self rev",
        "changelog.rev": "self node",
    },
    "mercurial.cmd_impls.clone": {"clone": "ui peeropts source dest ..."},
    "mercurial.config": {"config.read": "self path fp sections remap"},
    "mercurial.configuration.rcutil": {"get_shared_vfs": "hgvfs requirements"},
    "mercurial.context": {"filectx._changectx.func": "self"},
    "mercurial.exchange": {
        "_pullobsolete": "pullop",
        "unbundle": "repo cg heads source url",
    },
    "mercurial.exchanges.bundle_cache": {"get_manifest_lines": "repo"},
    "mercurial.exchanges.peer": {"server_filtername": "repo accesshidden"},
    "mercurial.filelog": {"filelog.renamed": "self node"},
    "mercurial.hg": {
        "cachedlocalrepo.__init__": "self repo",
        "cachedlocalrepo._repostate": "self",
    },
    "mercurial.hgweb.common": {"ispathsafe": "path"},
    "mercurial.hgweb.hgweb_mod_inner": {
        "cspvalues": "ui",
        "getwebview": "repo",
        "hgweb._runwsgi": "self req res repo",
        "hgweb.run_wsgi": "self req res",
        "requestcontext.templater": "self req",
    },
    "mercurial.hgweb.hgwebdir_mod_inner": {
        "cspvalues": "ui",
        "hgwebdir.templater": "self req nonce",
        "staticfile": "templatepath directory fname res",
    },
    "mercurial.hgweb.request": {"wsgiresponse.sendresponse": "self"},
    "mercurial.hgweb.webcommands": {
        "_search": "web",
        "comparison": "web",
        "graph": "web",
        "staticfile": "templatepath directory fname res",
    },
    "mercurial.hgweb.webutil": {
        "children": "ctx hide",
        "cleanpath": "repo path",
        "commonentry": "repo ctx",
        "filectx": "repo req",
    },
    "mercurial.localrepo": {
        "afterhgrcload": "ui wdirvfs hgvfs requirements",
        "createrepository": "ui path createopts requirements",
        "localpeer.local": "self",
        "localrepository.__getitem__": "self changeid",
        "localrepository.__len__": "self",
        "localrepository._writejournal": "self desc",
        "localrepository.branchmap": "self",
        "localrepository.cancopy": "self",
        "localrepository.file": "self path writable",
        "localrepository.filectx": "self path changeid fileid changectx",
        "localrepository.heads": "self start",
        "localrepository.pushkey": "self namespace key old new",
        "localrepository.recover": "self",
        "localrepository.rollback": "self dryrun force",
        "localrepository.transaction": "self desc report",
    },
    "mercurial.lock": {"lock.release": "self success"},
    "mercurial.phases": {"listphases": "repo"},
    "mercurial.repair": {
        "deleteobsmarkers": "obsstore indices",
        "strip": "ui repo nodelist backup topic",
    },
    "mercurial.repoview": {
        "filterrevs": "repo filtername ...",
        "repoview.filtered": "self name visibilityexceptions",
        "wrapchangelog": "unfichangelog filteredrevs",
    },
    "mercurial.revlog": {"revlog.censorrevision": "self tr censor_nodes tombstone"},
    "mercurial.revset": {"match": "ui spec lookup"},
    "mercurial.scmutil": {
        "_filterederror": "repo changeid",
        "_filtered_and_obs_revs": "repo max_rev",
        "resolvehexnodeidprefix": "repo prefix",
        "revsymbol": "repo symbol",
    },
    "mercurial.streamclone": {
        "allowservergeneration": "repo",
        "generatev1": "repo",
        "generatev2": "repo matcher includeobsmarkers",
        "generatev3": "repo matcher includeobsmarkers",
    },
    "mercurial.templater": {"loader._parse": "self tmpl"},
    "mercurial.tags": {"findglobaltags": "ui repo"},
    "mercurial.transaction": {
        "_playback": "journal report opener vfsmap entries backupentries unlink checkambigfiles",
        "read_backup_files": "report fp",
        "rollback": "opener vfsmap file report checkambigfiles skip_journal_pattern",
        "transaction._abort": "self",
        "transaction.add": "self ...",
        "transaction.addbackup": "self ...",
        "transaction.endgroup": "self ...",
    },
    "mercurial.ui": {"ui._trusted": "self fp f"},
    "mercurial.upgrade_utils.actions": {
        "preservedrequirements": "repo",
        "supporteddestrequirements": "repo",
    },
    "mercurial.util": {
        "atomictempfile.close": "self",
        "posixfile": "name mode buffering encoding",
        "urlreq.parseqsl": "qs ...",
    },
    "mercurial.utils.dag_util": {"blockdescendants": "fctx fromline toline"},
    "mercurial.wireprotoserver": {
        "_runsshserver": "ui repo fin fout ev ...",
        "httpv1protocolhandler.getargs": "self args",
    },
    "mercurial.wireprototypes": {"decodelist": "l sep"},
    "mercurial.wireprotov1server": {
        "_capabilities": "repo proto",
        "dispatch": "repo proto command accesshidden",
        "find_pullbundle": "repo proto opts clheads heads common",
        "commands.batch": "repo proto cmds others",
        "commands.between": "repo proto pairs",
        "commands.branches": "repo proto nodes",
        "commands.changegroup": "repo proto roots",
        "commands.changegroupsubset": "repo proto bases heads",
        "commands.get_cached_bundle_inline": "repo proto path",
        "commands.getbundle": "repo proto others",
        "commands.pushkey": "repo proto namespace key old new",
    },
}

# Class of such a function → the private attributes that its constructor makes, and these extensions and hooks use.
ATTRIBUTES = {
    "mercurial.transaction.transaction": "_backupentries _backupmap _backupsfile _file _filegenerators _journal _newfiles "
    "_offsetmap _opener _queue _vfsmap",
    "mercurial.util.atomictempfile": "_fp _tempname",
}


class MissingSeam(ImportError):
    """This Mercurial has no such function or attribute, or a function with other parameters."""


def wrap(module: str, name: str, wrapper: Callable[..., Any]) -> None:
    """Wrap a function of the table; raise MissingSeam if it is not as in the table."""
    for place in _check_places(module, name):
        owner, last = _find_owner(importlib.import_module(place.module), place.name)
        extensions.wrapfunction(owner, last, place.adapt(wrapper))


@contextmanager
def wrapped(module: str, name: str, wrapper: Callable[..., Any]) -> Iterator[None]:
    """Wrap a function of the table within a block, for all threads.

    Several threads may do so at once. Raises MissingSeam as `wrap` does. All supported versions have the function in one place.
    """
    [place] = _check_places(module, name)
    owner, last = _find_owner(importlib.import_module(place.module), place.name)
    adapted = place.adapt(wrapper)
    with _loading:
        extensions.wrapfunction(owner, last, adapted)
    try:
        yield
    finally:
        with _loading:
            extensions.unwrapfunction(owner, last, adapted)


_loading = threading.RLock()
# How Mercurial or Python name our modules.
_OURS = ("pushlog.", "hgext.vcsreplicator.", "hgext_pushlog.", "hgext_vcsreplicator.")


def loading(module: str, name: str) -> Callable[..., Any]:
    """Return a function that calls a function of one of our modules.

    It imports the module at its first call, so that a push does not pay for modules that it does not use. Any thread may call it.
    """

    def call(*arguments: Any, **keywords: Any) -> Any:
        # Mercurial's demand import is not safe in two threads at once: the second would see a module that has only begun.
        with _loading:
            function = getattr(importlib.import_module(module), name)
        return function(*arguments, **keywords)

    call.__module__, call.__name__ = module, name  # as Mercurial's log names a hook
    return call


def finish_imports() -> None:
    """Load all that Mercurial's demand import put off in our modules.

    It is not safe in two threads at once, so a server with threads calls this before it answers, and then disables it.
    """
    before = 0
    while before < len(sys.modules):
        before = len(sys.modules)
        for ours in [module for name, module in sys.modules.items() if name.startswith(_OURS)]:
            for named in list(vars(ours).values()):
                if isinstance(named, ModuleType):
                    dir(named)


def check(module: str, *names: str) -> None:
    """Raise MissingSeam for the first function that is not as in the table."""
    for name in names:
        _check_places(module, name)


def _check_places(module: str, name: str) -> tuple[versions.SeamPlace, ...]:
    """Return where an entry of the table is in this Mercurial, or raise MissingSeam."""
    places = versions.find_places(module, name, SEAMS[module][name])
    for place in places:
        expected, where = place.parameters.split(), f"{place.module}.{place.name}"
        try:
            owner, last = _find_owner(importlib.import_module(place.module), place.name)
            found = parameters(getattr(owner, last))
        except (ImportError, AttributeError, KeyError):
            raise MissingSeam(f"{where} is missing") from None
        if expected[-1] == "...":
            expected.pop()
            found = found[: len(expected)]
        if found != expected:
            raise MissingSeam(f"{where} takes ({', '.join(found)}), expected ({', '.join(expected)})")
        kind = where.rpartition(".")[0]
        if kind in ATTRIBUTES:
            missing = {*ATTRIBUTES[kind].split()} - {*_find_original(owner.__init__).__code__.co_names}
            if missing:
                raise MissingSeam(f"{kind} has no {', '.join(sorted(missing))}")
    return places


def _find_owner(module: Any, name: str) -> tuple[Any, str]:
    """Return the object that holds a function, and the name of its attribute."""
    *owners, last = name.split(".")
    if owners == ["commands"]:
        return module.commands[last.encode("ascii")], "func"
    return functools.reduce(_find_member, owners, module), last


def _find_member(owner: Any, name: str) -> Any:
    """Return an attribute; of a property that is computed once, what computes it."""
    member = vars(owner).get(name)
    return member if isinstance(member, util.propertycache) else getattr(owner, name)


def parameters(function: Any) -> list[str]:
    """Return a function's parameters, without wrappers of other extensions."""
    code = _find_original(function).__code__
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    return list(code.co_varnames[:count])


def _find_original(function: Any) -> Any:
    while inner := getattr(function, "_origfunc", None) or getattr(function, "__wrapped__", None):
        function = inner
    return function


def serves_one_client() -> bool:
    """Return whether this process is `hg serve --stdio`, which makes no web pages."""
    return ("serve", "--stdio") in itertools.pairwise(sys.argv[1:])


def check_version(oldest: tuple[int, int]) -> None:
    """Raise MissingSeam with a Mercurial that is too old.

    `minimumhgversion` is no substitute: with it, Mercurial leaves an extension out even where `:required = yes`.
    """
    if versions.is_older_than(oldest):
        needed = ".".join(map(str, oldest))
        raise MissingSeam(f"it needs Mercurial {needed} or newer, this is {util.version().decode()}")


class Setup:
    """The set-up of an extension; if a part fails, it refuses local repositories."""

    def __init__(self, extension: str) -> None:
        self._extension = extension
        self._problem: str | None = None
        self._working = threading.Lock()

    def run(self, set_up: Callable[[], None]) -> None:
        """Do a part of the set-up and never raise.

        After an exception, Mercurial would go on without the extension. Parts run one at a time, because threads of a web server
        open their first repositories at once.
        """
        with self._working:
            try:
                set_up()
            except Exception as problem:
                self._problem = self._problem or f"{type(problem).__name__}: {problem}"

    def check(self, repo: localrepository) -> None:
        """Refuse a local repository, by Abort, if a part of the set-up failed."""
        if self._problem is not None and repo.local():
            raise refusal(self._extension, self._problem)


def find_extension(name: bytes) -> Any:
    """Return the module of an extension; None if it is not loaded."""
    try:
        return extensions.find(name)
    except KeyError:
        return None


def refusal(extension: str, problem: str) -> error.Abort:
    """Return the error for a user of a repository that lacks this extension's work."""
    return error.Abort(
        f"the extension {extension} cannot do its work with Mercurial {util.version().decode()}: {problem}".encode(),
        hint=b"until that is fixed no repository is opened",
    )
