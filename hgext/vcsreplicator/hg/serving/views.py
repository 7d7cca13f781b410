# SPDX-License-Identifier: GPL-2.0-or-later
"""What a mirror shows: at most what was released, to every client, by every way in.

On a repository with `[vcsreplicator] role = mirror` the web pages and the wire protocol (HTTP, SSH, a path) see it through views
of our own, in which the changesets behind the watermark do not exist; without a watermark nothing does. File histories, which
know no views, end with the release too. What is copied from disk rather than looked up in a view (stream clones, hardlink clones,
clone bundles) is not offered while the disk holds anything that is not released. The pushlog's pages and wire commands stop at
the watermark. Bookmarks are those of the release. Phases and markers act when they are applied: a declared window of
milliseconds. A mirror is read-only: pushes are refused, and so is what a command on its machine would write. The views are
here, what stands at the ways in is in `guards`.

A repository object shows the release that was current when it was opened; hgweb opens another one when the watermark's file
has changed, an SSH session stays with its own. Local commands on the mirror's machine see everything.

Rule of this file: the watermark is read before the changelog. So the changelog is never older, and a watermark that does not
fit it is a reason to show nothing. Proven by `tests/hg/serving/*.t`.
"""

import os
from collections.abc import Callable
from typing import Any

from mercurial import changelog, error, localrepo, repoview, scmutil
from mercurial.node import hex, nullrev
from mercurial.utils import repoviewutil

from pushlog import seams

from . import watermark
from .watermark import Watermark, lower_watermark, read_watermark, write_watermark

__all__ = [
    "READ_ONLY",
    "VIEW",
    "Watermark",
    "is_mirror",
    "lower_watermark",
    "read_watermark",
    "register_views",
    "reposetup",
    "warm",
    "write_watermark",
]

READ_ONLY = b"this is a read-only mirror; push to the master instead"
VIEW = b"replicatedserved"
HIDDEN_VIEW = VIEW + b".hidden"
_PREFIX = b"replicated"
_IMMUTABLE = b"replicatedimmutable"
# The extension topic makes a variant of each view, NAME-topic, from the variant of the next smaller one, and fails for a view
# that has none, unless its name ends so already.
_BASE = b"replicatedbase-topic"

# Our view, the one of Mercurial's that it limits, and the next smaller one, from which branch caches are taken. The chain must
# be our own: `served` and `immutable` contain what is not released.
_VIEWS = (
    (HIDDEN_VIEW, b"served.hidden", VIEW),
    (VIEW, b"served", _IMMUTABLE),
    (HIDDEN_VIEW + b"-topic", b"served.hidden-topic", VIEW + b"-topic"),
    (VIEW + b"-topic", b"served-topic", _IMMUTABLE),
    (_IMMUTABLE, b"immutable", _BASE),
    (_BASE, b"base", None),
)
_LIMITED = {name: limited for name, limited, _ in _VIEWS}
# `view` of [web] and [server], and the view that answers for it. Whoever asks for more than is served gets what is served.
_CONFIGURED = {
    None: VIEW,
    b"served": VIEW,
    b"served.hidden": HIDDEN_VIEW,
    b"visible": VIEW,
    b"all": VIEW,
    b"immutable": _IMMUTABLE,
    b"base": _BASE,
}
_RELEASE = "_vcsreplicator_release"


class _Hidden(frozenset[int]):
    """What one of our views hides; `length` is what it shows as the number of changesets.

    `heads` are the index that they were looked up in and their nodes, ascending, once somebody asked. They are right as long as
    this is: Mercurial forgets it when a repository object reads its changelog, phases or markers anew.
    """

    length: int
    heads: tuple[Any, list[bytes]] | None = None


def is_mirror(ui: Any) -> bool:
    """Whether this configuration is that of a mirror."""
    return bool(ui.config(b"vcsreplicator", b"role") == b"mirror")


def reposetup(ui: Any, repo: Any) -> None:
    """Takes hold of the release that is current now, tells the pushlog where to stop, and lets nothing be written.

    An archive leaves out subrepositories: Mercurial takes them from disk, whole, and pulls what it does not find there.
    """
    if not repo.local() or not is_mirror(repo.ui):
        return
    from ...mirror.checkpoint import FILE  # which no push needs

    register_views()
    unfiltered = repo.unfiltered()
    release = read_watermark(unfiltered)
    setattr(unfiltered, _RELEASE, release)
    unfiltered._pushlog_limit = lambda: (release.push_id or 0) if release else 0
    unfiltered._pushlog_view = lambda: _widest_view(unfiltered)
    repo.ui.setconfig(b"web", b"archivesubrepos", False, b"vcsreplicator")

    class readonlymirror(unfiltered.__class__):  # type: ignore[misc, name-defined]
        def cancopy(self) -> bool:
            return super().cancopy() and everything_is_released(self)  # type: ignore[no-any-return]

        def __len__(self) -> int:
            return first_unreleased(self) if self.filtername in _LIMITED else super().__len__()  # type: ignore[no-any-return]

        def heads(self, start: Any = None) -> Any:
            if start is not None or self.filtername not in _LIMITED:
                return super().heads(start)
            return self.changelog.heads()[::-1]

        def branchmap(self, *arguments: Any, **keywords: Any) -> Any:
            if self.filtername not in _LIMITED or isinstance(self.changelog.filteredrevs, _Hidden):
                return super().branchmap(*arguments, **keywords)
            # The same; whoever applied has written its cache.
            whole = self.unfiltered().filtered(_LIMITED[self.filtername])
            return super(readonlymirror, whole).branchmap(*arguments, **keywords)

        def file(self, path: bytes, *arguments: Any, **keywords: Any) -> Any:
            history = super().file(path, *arguments, **keywords)
            if self.filtername in _LIMITED and (first := first_unreleased(self)) < super().__len__():
                _end_at(history, first)
            return history

        def transaction(self, desc: bytes, report: Any = None) -> Any:
            if self.vfs.exists(watermark.WATERMARK) or self.svfs.exists(FILE):
                raise error.Abort(READ_ONLY)
            return super().transaction(desc, report)

        def rollback(self, dryrun: bool = False, force: bool = False) -> Any:
            raise error.Abort(READ_ONLY)

        def pushkey(self, namespace: bytes, key: bytes, old: bytes, new: bytes) -> Any:
            raise error.Abort(READ_ONLY)

    unfiltered.__class__ = readonlymirror


def limited_view(name: bytes | None) -> bytes:
    """The view of ours that answers for a configured one; raises Abort for one that has none."""
    view = _CONFIGURED.get(name)
    if view is None:
        known = "served, visible, all, immutable or base"
        raise error.Abort(f"a mirror cannot limit the view {os.fsdecode(name or b'')}: expected {known}".encode())
    return view


def is_limited(repo: Any) -> bool:
    """Whether this is one of our views."""
    return repo.filtername in _LIMITED


def first_unreleased(repo: Any) -> int:
    """The number of the first changeset that must not be shown; the length of the changelog if there is none."""
    repo = repo.unfiltered()
    if not hasattr(repo, _RELEASE):
        if not is_mirror(repo.ui):
            return len(repo.changelog)
        setattr(repo, _RELEASE, read_watermark(repo))
    return watermark.fit(repo, getattr(repo, _RELEASE))


def _end_at(history: Any, first: int) -> None:
    """Forget, in this object, what came into a file's history with changeset number `first` or later: a suffix, as events are."""
    length = count = len(history)
    while count and history.linkrev(count - 1) >= first:
        count -= 1
    if count < length:
        del history.get_revlog().index[count:-1]


def everything_is_released(repo: Any) -> bool:
    """Whether the disk holds nothing that must not be shown. Sure only while the caller holds the repository's lock."""
    repo = repo.unfiltered()
    return not is_mirror(repo.ui) or watermark.fit(repo, read_watermark(repo)) == len(repo.changelog)


def warm(repo: Any) -> None:
    """Brings the caches of what clients see up to date on disk, so that no request pays for it.

    For the idle moments of a mirror's worker, whatever its configuration; needs no lock.
    """
    register_views()
    unfiltered = repo.unfiltered()
    setattr(unfiltered, _RELEASE, read_watermark(unfiltered))
    for name, _, _ in _VIEWS:
        unfiltered.filteredrevcache.pop(name, None)
    for name in dict.fromkeys((VIEW, _widest_view(unfiltered))):
        view = unfiltered.filtered(name)
        unfiltered._branchcaches.update_disk(view)
        view.tags()


def _widest_view(unfiltered: Any) -> bytes:
    """The view with hidden changesets; where none is hidden that of every client, so that its caches serve for both."""
    is_same = repoview.filterrevs(unfiltered, HIDDEN_VIEW) == repoview.filterrevs(unfiltered, VIEW)
    return VIEW if is_same else HIDDEN_VIEW


def register_views() -> None:
    """Makes our views known to Mercurial, once per process."""
    if VIEW in repoview.filtertable:
        return
    seams.check(repoview, "filterrevs")
    overridden = ("__len__", "branchmap", "cancopy", "file", "heads", "pushkey", "rollback", "transaction")
    seams.check(localrepo, *(f"localrepository.{name}" for name in overridden))
    seams.check(changelog, *(f"changelog.{name}" for name in ("_head_node_ids", "headrevs", "node", "rev")))
    seams.wrap(repoview, "repoview.filtered", _filtered)
    seams.wrap(repoview, "wrapchangelog", _changelog)
    seams.wrap(scmutil, "_filtered_and_obs_revs", _hidden_up_to)
    for name, limited, smaller in _VIEWS:
        repoview.filtertable[name] = _limit(limited)
        if smaller is not None:
            repoviewutil.subsettable[name] = smaller


def _limit(name: bytes) -> Callable[..., frozenset[int]]:
    """The filter of one of Mercurial's views, and everything behind the watermark."""

    def filtered(repo: Any, *args: Any, **kwargs: Any) -> frozenset[int]:
        # The variants of topic hide nothing more; it may not be loaded.
        known = name if name in repoview.filtertable else name.removesuffix(b"-topic")
        hidden: frozenset[int] = repoview.filtertable[known](repo, *args, **kwargs)
        first, length = first_unreleased(repo), len(repo.changelog)
        if first == length:
            return hidden
        limited = _Hidden(hidden.union(range(first, length)))
        limited.length = first
        return limited

    return filtered


def _filtered(orig: Any, view: Any, name: bytes, *arguments: Any) -> Any:
    """Wraps what gives another view to who has one (topic has some of its own): who has one of ours gets that limited as well."""
    if is_limited(view) and name not in _LIMITED:
        limited = _PREFIX + name
        if limited not in _LIMITED:
            repoview.filtertable[limited] = _limit(name)
            repoviewutil.subsettable[limited] = _BASE
            _LIMITED[limited] = name
        name = limited
    return orig(view, name, *arguments)


class _Ended:
    """A view's changelog that ends with the release: `-1` is the last that is shown, and the rest does not exist.

    Of very many heads a request asks for each: all heads are looked up once, and `node` and `rev` are short ways with the errors
    of the long ones.
    """

    index: Any
    _filteredrevs: _Hidden
    display_id: bytes

    def __len__(self) -> int:
        return self._filteredrevs.length

    def node(self, rev: int) -> bytes:
        if rev in self._filteredrevs:
            raise error.FilteredIndexError(rev)
        try:
            return self.index[rev][7]  # type: ignore[no-any-return]
        except IndexError:
            return super().node(rev)  # type: ignore[misc, no-any-return]

    def rev(self, node: bytes) -> int:
        number: int | None = self.index.get_rev(node)
        if number is None:
            return super().rev(node)  # type: ignore[misc, no-any-return]
        hidden = self._filteredrevs
        if number not in hidden:
            return number
        reason = b"filtered node" if number < hidden.length else b"no node"
        raise error.FilteredLookupError(hex(node), self.display_id, reason)

    def headrevs(self, revs: Any = None, stop_rev: Any = None) -> Any:
        if revs is None and not len(self):
            return [nullrev]
        return super().headrevs(revs, stop_rev)  # type: ignore[misc]

    def _head_node_ids(self) -> list[bytes]:
        hidden, index = self._filteredrevs, self.index
        if hidden.heads is None or hidden.heads[0] is not index:
            hidden.heads = index, [index[number][7] for number in self.headrevs()]
        return hidden.heads[1].copy()


def _changelog(orig: Any, changelog: Any, hidden: frozenset[int]) -> Any:
    """Wraps what gives a view its changelog. No closure: classes made at run time live until the garbage collector comes."""
    shown = orig(changelog, hidden)
    if isinstance(hidden, _Hidden):
        shown.__class__ = type("releasedchangelog", (_Ended, shown.__class__), {})
    return shown


def _hidden_up_to(orig: Any, repo: Any, last: int) -> Any:
    """Wraps what validates the caches of a view: they depend on what it hides up to `last`, not on what is behind the release."""
    hidden, obsolete = orig(repo, last)
    if isinstance(repo.changelog.filteredrevs, _Hidden):
        hidden, obsolete = ({number for number in numbers if number <= last} for numbers in (hidden, obsolete))
    return hidden, obsolete
