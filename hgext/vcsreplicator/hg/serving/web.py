# SPDX-License-Identifier: GPL-2.0-or-later
"""A folder of repositories over HTTP: hgweb, with new ones known at once.

hgweb scans its folder every `web.refreshinterval` seconds (20), so a new repository stays hidden after its notice. Here every path
that is a repository on disk is served, even if no scan has found it: it may be new, or a second name of one repository, of which a
scan finds only one. A path that was a repository causes a scan.
"""

import contextlib
import copy
import functools
import gc
import importlib
import itertools
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import structlog
from mercurial import demandimport, encoding, error, templateutil
from mercurial.hgweb import hgwebdir_mod, request
from mercurial.hgweb.common import HTTP_SERVER_ERROR, ErrorResponse
from mercurial.ui import ui as Ui

from pushlog.seams import find_extension
from pushlog.store import regular
from pushlog.versions import factory, initialize
from pushlog.web import bounds

from ...mirror.supervision import boot
from ...outbox.folder import refuse_repository_pipes
from ...words.errors import BadConfig
from .. import pages
from ..pages import arguments, files
from ..settings import SECTION, take_posted_arguments
from ..trusted import rule
from . import guards
from .paths import Pushes, follow_path, is_ours

logger = structlog.get_logger()

# Mercurial passes over an hgrc that it may not read without a word.
_READ = ", a file that the user of the server may read"

_PLAIN_TEXT = [("Content-Type", "text/plain; charset=utf-8")]

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


class _RepositoryFolder(hgwebdir_mod.hgwebdir):
    """A folder of repositories, without the folder of a mirror or master in it."""

    known: frozenset[bytes]
    _is_of_one_request = False

    def __init__(self, paths: dict[bytes, bytes]) -> None:
        # The content type of this folder's own pages, by encoding, once a request needed it. Folders for one request share it.
        self._content_types: dict[bytes, Any] = {}
        super().__init__(paths)

    def serve_more(self, repositories: Sequence[tuple[bytes, bytes]]) -> Self:
        """Return this folder with more repositories, for one request."""
        self.refresh()
        more = copy.copy(self)
        more.repos = [*self.repos, *repositories]
        more._is_of_one_request = True
        return more

    def refresh(self) -> None:
        """Scan the folder if it is due; hgweb calls this at each request."""
        if self._is_of_one_request:
            return
        before = self.lastrefresh
        super().refresh()
        if self.lastrefresh != before:
            take_posted_arguments(self.ui)
            # Else the pages and archives with a censored file, which any pusher can make, would end in the middle.
            self.ui.setconfig(b"censor", b"policy", b"ignore", b"vcsreplicator")
            self._content_types.clear()
            self.repos = [(name, place) for name, place in self.repos if not any(map(is_ours, name.split(b"/")))]
            self.known = frozenset(name for name, _ in self.repos)

    def makeindex(self, req: Any, res: Any, tmpl: Any, subdir: bytes = b"") -> Any:
        """Show a list of the repositories without those in which a pipe lies; Mercurial opens all of it."""
        self.refresh()
        shown = copy.copy(self)
        shown._is_of_one_request = True
        shown.repos = [each for each in self.repos if each[0].startswith(subdir) and _has_no_pipe(*each)]
        return super(_RepositoryFolder, shown).makeindex(req, res, tmpl, subdir)

    def templater(self, req: Any, nonce: bytes | None) -> Any:
        """Return the templates of this folder's own pages, to be read when one is shown.

        hgweb asks for them at each request. For a short answer about a repository, reading them would be half of the work.
        """
        read = functools.partial(super().templater, req, nonce)
        if b"style" in req.qsparams:
            made = read()
            return _FolderTemplates(lambda: made, made.render(b"mimetype", {b"encoding": encoding.encoding}))
        used = encoding.encoding
        if (known := self._content_types.get(used)) is None:
            known = self._content_types[used] = read().render(b"mimetype", {b"encoding": used})
        return _FolderTemplates(read, known)


def _has_no_pipe(name: bytes, place: bytes) -> bool:
    """Return whether Mercurial can open a repository without waiting for a pipe's writer."""
    try:
        refuse_repository_pipes(os.fsdecode(place))
    except OSError as problem:
        logger.error("repository cannot be read", path=os.fsdecode(name), reason=str(problem))
        return False
    return True


class _FolderTemplates:
    """The templates of a folder's own pages, read for each page that is shown.

    It has what hgweb uses of templates.
    """

    def __init__(self, read: Callable[[], Any], content_type: bytes) -> None:
        self._read, self._content_type = read, content_type

    def render(self, name: bytes, values: dict[bytes, Any]) -> Any:
        return self._content_type if name == b"mimetype" else self._read().render(name, values)

    def generate(self, name: bytes, values: dict[bytes, Any]) -> Any:
        """Return a page; raise again why a repository was not opened.

        hgweb's pages of an error and of a missing repository need what only repositories have; style json has none of the latter.
        """
        if name == b"error":
            _raise_unopened()
        templates = self._read()
        if name == b"notfound" and name not in templates:
            raise error.RepoLookupError(b"no such repository")
        none = templateutil.mappinglist([])
        return templates.generate(name, {b"pathdef": none, b"archives": none, **values})


def _raise_unopened() -> None:
    """Raise again why hgweb could not open a repository, if that is its answer."""
    answered = sys.exc_info()[1]
    if not isinstance(answered, ErrorResponse) or answered.code != HTTP_SERVER_ERROR:
        return
    if isinstance(answered.__context__, OSError | error.RepoError):
        raise answered.__context__


def application(root: str, *, threads: int | None = None) -> Application:
    """Make the WSGI application for every repository below `root`.

    With `threads`, the number of requests that the server answers at once, some of them stay free while others wait for pushes.

    Configuration comes from HGRCPATH alone; a repository's own hgrc is read by Mercurial as usual unless HGRCSKIPREPO is set.
    Demand import is switched off: threads that import lazily at the same time answer 500. The garbage collector no longer examines
    the objects that exist by now. Raises BadConfig if Mercurial cannot read its configuration, or load a required extension.
    """
    demandimport.disable()
    initialize()  # without an extension that does it, revsets and commands would be unknown
    bounds.register()  # also for repositories without the pushlog
    # Also for hgrcs that do not load vcsreplicator.
    pages.hide_names()
    files.install()
    regular.install()
    rule.install(is_service=True)
    folder = os.fsencode(os.path.realpath(root))
    try:
        hgweb = _RepositoryFolder({b"/": os.path.join(folder, b"**")})
    except error.Error as problem:
        raise BadConfig(f"hgrc: {_describe(problem).removeprefix('abort: ')}: correct what HGRCPATH names") from problem
    if (pushlog := find_extension(b"pushlog")) is not None:
        with contextlib.suppress(ImportError):  # then each repository is refused with the reason
            importlib.import_module(f"{pushlog.__name__}.web.seam").load_web()
    # hgweb collects garbage after each request, which takes 16 ms with all the modules in it.
    gc.collect()
    gc.freeze()

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if "\0" in environ.get("PATH_INFO", "") or "%00" in environ.get("QUERY_STRING", ""):
            start_response("400 Bad Request", _PLAIN_TEXT)
            return [b"Bad Request\n"]
        if threads is not None:
            # How many requests may wait for a push: two threads stay free, or one of two; a single thread never waits.
            environ["pushlog.waiters"] = max(threads - 2, min(threads - 1, 1))
        # Folders of the path in the last repository of it that are none.
        unlisted, missing = [], list[str]()
        for name, place, is_repository in follow_path(folder, environ.get("PATH_INFO", "")):
            missing = [] if is_repository else [*missing, os.fsdecode(place)]
            if is_repository and name not in hgweb.known:
                unlisted.append((name, place))
            elif not is_repository and name in hgweb.known:
                hgweb.lastrefresh = 0
            if is_repository:
                try:
                    # Opening a pipe would block the thread of the request indefinitely.
                    refuse_repository_pipes(os.fsdecode(place))
                except OSError as problem:
                    return _refuse_unreadable(problem, environ, start_response)
        if missing and boot.is_behind(*missing):  # one look at all: they may be hundreds
            start_response("503 Service Unavailable", [*_PLAIN_TEXT, ("Retry-After", guards.RETRY_AFTER)])
            return [guards.BEHIND]
        return _answer_or_refuse(hgweb.serve_more(unlisted) if unlisted else hgweb, environ, start_response)

    return answer


def _is_written_by_mirror(root: str) -> bool:
    return os.path.isdir(os.path.join(root, "~vcsreplicator"))


def find_pushes(root: str) -> Pushes:
    """Return where the folder's server could permit a push.

    Not in a mirror, nor in what will be one. No client has a name here, so elsewhere only `allow-push = *` permits it, and each
    `deny_push` denies it.
    """
    ui = Ui.load()
    is_of_mirror = _is_written_by_mirror(root) or ui.config(SECTION, b"role") == b"mirror"
    if is_of_mirror or ui.configlist(b"web", b"deny_push"):
        return Pushes.NOWHERE
    return Pushes.EVERYWHERE if ui.configlist(b"web", b"allow-push") == [b"*"] else Pushes.BY_REPOSITORY


def refuse_unguarded(root: str) -> None:
    """Raise BadConfig for a folder whose server would break a promise.

    That of a mirror hides nothing unreleased, that of a master takes pushes without an event.
    """
    is_loaded = find_extension(b"vcsreplicator") is not None
    if not _is_written_by_mirror(root):
        if is_loaded:
            return
        from ...relay.lacking import has_outbox  # much that a server does not need

        if has_outbox([root]):
            problem = "no hgrc loads vcsreplicator, so no mirror would get what is pushed"
            raise BadConfig(
                f"--root: {root} is a master's, and {problem}: set HGRCPATH=/etc/mercurial/master.hgrc{_READ}"
            )
        return
    if not is_loaded:
        problem = "no hgrc loads vcsreplicator, which hides what is not released"
    elif Ui.load().config(SECTION, b"role") == b"master":
        problem = "its hgrc has role = master, which hides nothing that is not released"
    else:
        return
    raise BadConfig(f"--root: {root} is a mirror's, and {problem}: set HGRCPATH=/etc/mercurial/mirror.hgrc{_READ}")


def _answer_or_refuse(hgweb: _RepositoryFolder, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Have hgweb answer, or answer 404 or 400 if the client asks what makes no sense.

    All else is answered with 500, and the log has the reason: an operator must act, not the client.
    """
    try:
        body = iter(hgweb(environ, start_response))
        first = next(body, b"")
    except (error.LockError, MemoryError):
        raise
    except Exception as problem:
        if _is_of_opening(problem) or isinstance(problem, OSError):
            return _refuse_unreadable(problem, environ, start_response)
        kind, line = type(problem).__name__, _raising_line(problem)
        is_missing = isinstance(problem, error.RepoLookupError)
        if is_missing or _is_malformed(problem):
            status = "404 Not Found" if is_missing else "400 Bad Request"
            logger.warning("request not understood", path=environ.get("PATH_INFO"), problem=kind, place=line)
            start_response(status, _PLAIN_TEXT, sys.exc_info())
            return [status[4:].encode() + b"\n"]
        if isinstance(problem, error.RepoError | error.StorageError):
            return _refuse_unreadable(problem, environ, start_response)
        logger.error("request failed", path=environ.get("PATH_INFO"), reason=_describe(problem), place=line)
        start_response("500 Internal Server Error", _PLAIN_TEXT, sys.exc_info())
        return [b"The request failed; the server's log has the reason.\n"]
    return itertools.chain([first], body)


def _is_malformed(problem: BaseException) -> bool:
    """Return whether the client's arguments cannot be understood.

    hgweb looks parameters up in a `multidict`, and raises KeyError for a missing one. A query is parsed by recursion.
    """
    if isinstance(problem, arguments.BadArgument | RecursionError | error.Abort):
        return True
    calls = [frame for frame, _ in traceback.walk_tb(problem.__traceback__)]
    if isinstance(problem, ValueError):
        return any(call.f_code is request.parserequestfromenv.__code__ for call in calls)
    return isinstance(problem, KeyError) and calls[-1].f_code is request.multidict.__getitem__.__code__


def _refuse_unreadable(problem: Exception, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    where, line = environ.get("PATH_INFO"), _raising_line(problem)
    logger.error("repository cannot be read", path=where, reason=_describe(problem), place=line)
    start_response("500 Internal Server Error", _PLAIN_TEXT, sys.exc_info())
    return [b"The repository cannot be read; the server's log has the reason.\n"]


def _is_of_opening(problem: BaseException) -> bool:
    """Return whether Mercurial raised the exception while it opened a repository."""
    calls = (frame for frame, _ in traceback.walk_tb(problem.__traceback__))
    return any(
        call.f_code.co_name == "repository" and call.f_globals.get("__name__") == factory.__name__ for call in calls
    )


def _describe(problem: BaseException) -> str:
    """Describe an exception in one line, with Mercurial's hint and place."""
    if isinstance(problem, error.Error):
        return " ".join(problem.format().decode("utf-8", "replace").split())
    return f"{type(problem).__name__}: {problem}"


def _raising_line(problem: BaseException) -> str:
    """Return the line that raised the exception, as FILE:LINE."""
    last = traceback.extract_tb(problem.__traceback__)[-1]
    return f"{os.path.basename(last.filename)}:{last.lineno}"
