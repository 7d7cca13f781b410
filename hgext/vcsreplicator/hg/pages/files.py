# SPDX-License-Identifier: GPL-2.0-or-later
"""The pages of hgweb, which show nothing of what their view hides.

hgweb reads files past the view. Where a request names no changeset that it knows, it takes the name for that of a file revision; it
looks for the newest revision of a file in all of its history; and it shows the changeset that first had a file revision even if
that is hidden. Here a file revision is shown if a changeset of the view has it, and with that changeset. Otherwise it does not
exist.

A page has no working directory either: that of a server is of no interest, and reading it takes long.
"""

import functools
import itertools
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from mercurial import context, error, revset
from mercurial.localrepo import localrepository
from mercurial.ui import ui as Ui

from pushlog import seams

from . import archives, arguments, disposition
from .unknown import is_of_clients

if TYPE_CHECKING:
    from mercurial.hgweb.request import parsedrequest

# Changesets that are searched for a file revision whose first one is hidden. It was mostly amended, and the successor is near.
_SEARCHED = 10_000
_WORKING = b"\xff" * 20


@functools.cache
def install() -> None:
    """Wrap what reads past the view, once per process, or raise MissingSeam."""
    revset.safesymbols.discard(b"wdir")
    disposition.install()
    arguments.install()
    archives.install()
    seams.wrap("mercurial.context", "filectx._changectx.func", _find_changeset)
    seams.wrap("mercurial.filelog", "filelog.renamed", _find_source)
    seams.wrap("mercurial.hgweb.webutil", "filectx", _find_file_revision)
    seams.wrap("mercurial.hgweb.webutil", "children", _list_children)
    seams.wrap("mercurial.localrepo", "localrepository.filectx", _open_file_of)
    seams.wrap("mercurial.localrepo", "localrepository.__getitem__", _refuse_working_directory)
    seams.wrap("mercurial.scmutil", "revsymbol", _refuse_working_directory)
    seams.wrap("mercurial.tags", "findglobaltags", _find_tags)
    seams.wrap("mercurial.utils.dag_util", "blockdescendants", _list_changes)


def _find_changeset(orig: Callable[..., Any], file: Any) -> Any:
    """Find the changeset of a file revision, never behind the view of a client."""
    repo = file._repo
    if is_of_clients(repo) and file._changeid in repo.changelog.filteredrevs:
        raise error.RepoLookupError(b"unknown revision '%d'" % file._changeid)
    return orig(file)


def _find_source(orig: Callable[..., Any], history: Any, node: bytes) -> Any:
    """Find what a file revision is a copy of; of a censored one nothing is known."""
    try:
        return orig(history, node)
    except error.CensoredNodeError:
        return None


def _find_file_revision(orig: Callable[..., Any], repo: localrepository, request: "parsedrequest") -> Any:
    """Find the file revision of a request; a hidden one is not there."""
    file = orig(repo, request)
    if "_fileid" not in vars(file):
        return file  # of a changeset that the request names
    try:
        shown = _find_shown(file)
    except (error.LookupError, error.WdirUnsupported):
        shown = None
    if shown is None:
        raise error.LookupError(file._fileid, b"data/%s" % file.path(), b"no match found")
    return shown


def _find_shown(file: Any) -> Any:
    """Find the same file revision with a changeset of the view; None if none has it.

    Raises LookupError if it is not there.
    """
    number, history, path = file.filerev(), file.filelog(), file.path()
    first, changelog = history.linkrev(number), file._repo.changelog
    if first not in changelog.filteredrevs:
        return file.filectx(number, changeid=first)
    for later in itertools.islice(changelog.revs(first + 1), _SEARCHED):
        if path in changelog.readfiles(changelog.node(later)):
            changeset = file._repo[later]
            if path in changeset and changeset.filenode(path) == history.node(number):
                return file.filectx(number, changeid=later)
    return None


def _list_shown(files: Iterable[Any]) -> Iterator[Any]:
    return (shown for file in files if (shown := _find_shown(file)) is not None)


def _list_children(orig: Callable[..., Any], asked: Any, hide: int | None = None) -> Any:
    """List the children of a changeset or file revision that the view shows."""
    if not isinstance(asked, context.filectx):
        return orig(asked, hide)
    # `webutil.children` and its other wrapper ask for nothing else.
    return orig(types.SimpleNamespace(rev=lambda: None, children=lambda: list(_list_shown(asked.children()))), hide)


def _list_changes(
    orig: Callable[..., Iterator[tuple[Any, Any]]], file: Any, first: int, last: int
) -> Iterator[tuple[Any, Any]]:
    """List the later changes of lines that the view shows."""
    for changed, lines in orig(file, first, last):
        if changed == file:
            yield file, lines
        elif (shown := _find_shown(changed)) is not None:
            yield shown, lines


def _open_file_of(
    orig: Callable[..., Any],
    repo: localrepository,
    path: bytes,
    changeid: int | None = None,
    fileid: Any = None,
    changectx: Any = None,
) -> Any:
    """Open a file of a changeset; of a hidden one, the newest revision before it.

    hgweb asks so for the newest revision before a changeset that lacks the file. Without one it answers that.
    """
    found = orig(repo, path, changeid, fileid, changectx)
    if changeid is None or not is_of_clients(repo) or changeid not in repo.changelog.filteredrevs:
        return found
    history = repo.file(path)
    numbers = (number for number in reversed(range(len(history))) if history.linkrev(number) < changeid)
    for number in numbers:
        if (shown := _find_shown(found.filectx(number))) is not None and shown.rev() < changeid:
            return shown
    answered = sys.exc_info()[1]
    raise answered if isinstance(answered, error.LookupError) else error.RepoLookupError(b"unknown revision")


def _find_tags(orig: Callable[..., dict[bytes, Any]], ui: Ui, repo: localrepository) -> dict[bytes, Any]:
    """Find tags; one at the working directory is not there: any pusher may write it, and pages with tags would fail."""
    return {name: found for name, found in orig(ui, repo).items() if found[0] != _WORKING}


def _refuse_working_directory(orig: Callable[..., Any], repo: localrepository, name: Any) -> Any:
    """Find a changeset; raise RepoLookupError for the working directory's names."""
    found = orig(repo, name)
    if isinstance(found, context.workingctx) and is_of_clients(repo) and isinstance(name, bytes | int):
        asked = name if isinstance(name, bytes) else b"%d" % name
        raise error.RepoLookupError(b"unknown revision '%s'" % asked)
    return found
