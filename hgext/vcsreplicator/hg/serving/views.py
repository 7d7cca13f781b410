# SPDX-License-Identifier: GPL-2.0-or-later
"""The views of a mirror: at most the release, through every way in.

On a repository with `[vcsreplicator] role = mirror` the web pages and the wire protocol (HTTP, SSH, a path) see it through views
of our own, in which the changesets behind the watermark do not exist; without a watermark nothing does. File histories, which
know no views, end with the release too. Copies of files on disk, which no view can limit (stream clones, hardlink clones, clone
bundles), are not offered while the disk holds unreleased changesets. The pushlog's pages and wire commands stop at
the watermark. Bookmarks are those of the release. Phases and markers act when they are applied: a declared window of
milliseconds. A mirror is read-only: it refuses pushes, and what a command on its machine would write. The views are here; the
wrappers of the ways in are in `guards`, `copies` and `refusals`.

A repository object shows the release that was current when it was opened; hgweb opens another one when the watermark's file
has changed, an SSH session stays with its own. Local commands on the mirror's machine see everything.

Rule of this file: the watermark is read before the changelog. So the changelog is never older, and a watermark that does not
fit it is a reason to show nothing. Proven by `tests/hg/serving/*.t`.
"""

import os
from collections.abc import Callable, Set
from typing import Any, NamedTuple

from mercurial import error, repoview
from mercurial.localrepo import localrepository
from mercurial.ui import ui as Ui
from mercurial.utils import repoviewutil

from pushlog import seams

from ...words.event import ClientSettings
from . import watermark
from .ending import HiddenRevisions, end_changelog
from .watermark import Watermark

READ_ONLY = b"this is a read-only mirror; push to the master instead"
VIEW = b"replicatedserved"
HIDDEN_VIEW = VIEW + b".hidden"
_PREFIX = b"replicated"
_IMMUTABLE = b"replicatedimmutable"
# The extension topic makes a variant of each view, NAME-topic, from the variant of the next smaller one, and fails for a view
# that has none, unless its name ends so already.
_BASE = b"replicatedbase-topic"

# Our view, Mercurial's view that it limits, and the next smaller one, from which branch caches are taken. The chain must
# be our own: `served` and `immutable` contain unreleased changesets.
_VIEWS = (
    (HIDDEN_VIEW, b"served.hidden", VIEW),
    (VIEW, b"served", _IMMUTABLE),
    (HIDDEN_VIEW + b"-topic", b"served.hidden-topic", VIEW + b"-topic"),
    (VIEW + b"-topic", b"served-topic", _IMMUTABLE),
    (_IMMUTABLE, b"immutable", _BASE),
    (_BASE, b"base", None),
)
_LIMITED = {name: limited for name, limited, _ in _VIEWS}
# `view` of [web] and [server], and the view that answers for it. A request for more gets the served view.
_CONFIGURED = {
    None: VIEW,
    b"served": VIEW,
    b"served.hidden": HIDDEN_VIEW,
    b"visible": VIEW,
    b"all": VIEW,
    b"immutable": _IMMUTABLE,
    b"base": _BASE,
}
# The attribute of a repository object that holds its release, and the lines of that release's bookmarks.
_HELD = "_vcsreplicator_release"

# How often the files of a release are read until none is written meanwhile.
_READINGS = 10


class HeldRelease(NamedTuple):
    """A release as one repository object shows it; without a watermark, nothing."""

    watermark: Watermark | None
    bookmarks: bytes
    settings: ClientSettings


def is_mirror(ui: Ui) -> bool:
    """Return whether this configuration is that of a mirror."""
    return bool(ui.config(b"vcsreplicator", b"role") == b"mirror")


def limited_view(name: bytes | None) -> bytes:
    """Find our view that answers for a configured one, or raise Abort."""
    view = _CONFIGURED.get(name)
    if view is None:
        known = "served, visible, all, immutable or base"
        raise error.Abort(f"a mirror cannot limit the view {os.fsdecode(name or b'')}: expected {known}".encode())
    return view


def is_limited(repo: localrepository) -> bool:
    """Return whether this is one of our views."""
    return repo.filtername in _LIMITED


def unlimited(repo: localrepository) -> localrepository:
    """Return Mercurial's view that this view of ours limits."""
    assert repo.filtername is not None
    return repo.unfiltered().filtered(_LIMITED[repo.filtername])


def hold_release(unfiltered: localrepository) -> None:
    """Have this repository object show the present release; without one, nothing.

    The bookmarks are read with the watermark: a later release may move them to changesets that this one does not show.
    """
    for _ in range(_READINGS):
        release, bookmarks = watermark.read_watermark(unfiltered.vfs), watermark.read_bookmarks(unfiltered.vfs)
        settings = watermark.read_settings(unfiltered.vfs, release)
        if watermark.read_watermark(unfiltered.vfs) == release:
            break
    setattr(unfiltered, _HELD, HeldRelease(release, bookmarks, settings))


def held_release(repo: localrepository) -> HeldRelease:
    """Return the release that this repository object has held since its first use."""
    repo = repo.unfiltered()
    if not hasattr(repo, _HELD):
        hold_release(repo)
    held: HeldRelease = getattr(repo, _HELD)
    return held


def shown_release(repo: localrepository) -> Watermark | None:
    """Return the release that this object shows; None if that is nothing."""
    release = held_release(repo).watermark
    return release if release is not None and release.fits(repo) else None


def first_unreleased(repo: localrepository) -> int:
    """Find the number of the first changeset that must not be shown, or the length."""
    repo = repo.unfiltered()
    if not hasattr(repo, _HELD) and not is_mirror(repo.ui):
        return len(repo.changelog)
    return watermark.count_shown(repo, held_release(repo).watermark)


def everything_is_released(repo: localrepository) -> bool:
    """Return whether all on disk may be shown: sure only while the lock is held."""
    repo = repo.unfiltered()
    if not is_mirror(repo.ui):
        return True
    release = watermark.read_watermark(repo.vfs)
    return watermark.count_shown(repo, release) == len(repo.changelog)


def warm(repo: localrepository) -> None:
    """Bring the caches of clients' views up to date on disk; needs no lock."""
    register_views()
    unfiltered = repo.unfiltered()
    hold_release(unfiltered)
    for name, _, _ in _VIEWS:
        unfiltered.filteredrevcache.pop(name, None)
    for name in dict.fromkeys((VIEW, widest_view(unfiltered))):
        view = unfiltered.filtered(name)
        unfiltered._branchcaches.update_disk(view)
        view.tags()


def widest_view(repo: localrepository) -> bytes:
    """Choose the view with hidden changesets, or the common one where none is hidden.

    A view of public changesets alone hides the others for their phase: it stays.
    """
    if repo.filtername in (_IMMUTABLE, _BASE):
        return repo.filtername
    unfiltered = repo.unfiltered()
    is_same = repoview.filterrevs(unfiltered, HIDDEN_VIEW) == repoview.filterrevs(unfiltered, VIEW)
    return VIEW if is_same else HIDDEN_VIEW


def register_views() -> None:
    """Make our views known to Mercurial, once per process."""
    if VIEW in repoview.filtertable:
        return
    seams.check("mercurial.repoview", "filterrevs")
    seams.check("mercurial.changelog", *(f"changelog.{name}" for name in ("_head_node_ids", "headrevs", "node", "rev")))
    seams.wrap("mercurial.repoview", "repoview.filtered", _limit_other_view)
    seams.wrap("mercurial.repoview", "wrapchangelog", end_changelog)
    seams.wrap("mercurial.scmutil", "_filtered_and_obs_revs", _hide_up_to)
    for name, limited, smaller in _VIEWS:
        repoview.filtertable[name] = _limited_filter(limited)
        if smaller is not None:
            repoviewutil.subsettable[name] = smaller


def _limited_filter(name: bytes) -> Callable[..., frozenset[int]]:
    """Make the filter of a view of Mercurial's, and of all behind the watermark."""

    def hide(repo: localrepository, *args: Any, **kwargs: Any) -> frozenset[int]:
        # The variants of topic hide nothing more; it may not be loaded.
        known = name if name in repoview.filtertable else name.removesuffix(b"-topic")
        hidden = repoview.filtertable[known](repo, *args, **kwargs)
        first, length = first_unreleased(repo), len(repo.changelog)
        if first == length:
            return hidden
        limited = HiddenRevisions(hidden.union(range(first, length)))
        limited.length = first
        return limited

    return hide


def _limit_other_view(
    orig: Callable[..., localrepository], view: localrepository, name: bytes, *args: Any
) -> localrepository:
    """Give another view of a repository, limited if this one is, such as topic's."""
    if is_limited(view) and name not in _LIMITED:
        limited = _PREFIX + name
        if limited not in _LIMITED:
            repoview.filtertable[limited] = _limited_filter(name)
            repoviewutil.subsettable[limited] = _BASE
            _LIMITED[limited] = name
        name = limited
    return orig(view, name, *args)


def _hide_up_to(
    orig: Callable[..., tuple[Set[int], Set[int]]], repo: localrepository, last: int
) -> tuple[Set[int], Set[int]]:
    """Validate a view's caches by what it hides up to `last`, not behind the release."""
    hidden, obsolete = orig(repo, last)
    if isinstance(repo.changelog.filteredrevs, HiddenRevisions):
        hidden, obsolete = ({number for number in numbers if number <= last} for numbers in (hidden, obsolete))
    return hidden, obsolete
