# SPDX-License-Identifier: GPL-2.0-or-later
"""What Mercurial lists when it loads the extension.

These are commands, revsets, template keywords, wire commands, and the wrappers of its functions. A push uses none of the modules
that do their work, so it loads none of them: the first call imports each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mercurial import registrar, templateutil, wireprotov1server
from mercurial.i18n import _
from mercurial.localrepo import localrepository
from mercurial.ui import ui as Ui

from . import seams

if TYPE_CHECKING:
    from mercurial.revsetlang import _Tree as ParsedRevset
    from mercurial.smartset import abstractsmartset
    from mercurial.templater import engine
    from mercurial.wireprototypes import baseprotocolhandler

    from .store.entry import Push

# Mercurial names a package that it loads by its path otherwise.
_WIRE = f"{__package__}.wire"

cmdtable: dict[bytes, Any] = {}
command = registrar.command(cmdtable)
predicate = registrar.revsetpredicate()
keyword = registrar.templatekeyword()


def wrap() -> None:
    """Wrap Mercurial's functions for the pushlog, and offer both wire commands.

    Called once per process.
    """
    seams.wrap("mercurial.wireprotov1server", "_capabilities", _announce)
    seams.wrap("mercurial.exchange", "_pullobsolete", seams.loading(f"{__package__}.fetching", "pull"))
    seams.wrap("mercurial.repair", "strip", seams.loading(f"{__package__}.stripping", "strip"))
    seams.wrap("mercurial.localrepo", "localrepository.rollback", seams.loading(f"{__package__}.stripping", "rollback"))
    offer = wireprotov1server.wireprotocommand
    offer(b"pushlog", b"firstpush", permission=b"pull")(seams.loading(_WIRE, "serve_pushlog"))
    offer(b"pushlog-stream", b"firstpush", permission=b"pull")(seams.loading(_WIRE, "serve_pushlog_stream"))


def _announce(orig: Any, repo: localrepository, proto: baseprotocolhandler) -> list[bytes]:
    decide = getattr(repo.unfiltered(), "_pushlog_limit", None)
    last = None if decide is None else decide()
    # A client that has more reads from `fetching` that this server is behind.
    ends = [] if last is None else [b"pushlog-last=%d" % last]
    return [*orig(repo, proto), b"pushlog", b"pushlog-stream", *ends]


@command(
    b"verifypushlog",
    [(b"", b"since", b"", _(b"check this changeset and those after it"), _(b"REV"))],
    _(b"hg verifypushlog [--since REV]"),
    helpcategory=command.CATEGORY_MAINTENANCE,
)
def verifypushlog(ui: Ui, repo: localrepository, **options: Any) -> int:
    """check that the pushlog and the repository agree

    Every changeset must belong to exactly one push, and every push name changesets that exist. Hidden changesets count. A push
    without changesets (a strip took them away) is mentioned only. Changesets from before the pushlog are an error, shown in
    one line; --since leaves them out.

    Returns 0 if they agree.
    """
    from . import checking

    return checking.verifypushlog(ui, repo, **options)


@command(b"repairpushlog", [], _(b"hg repairpushlog"), helpcategory=command.CATEGORY_MAINTENANCE)
def repairpushlog(ui: Ui, repo: localrepository, **options: Any) -> int:
    """make pushlog2.db anew from the pushlog's file

    The file .hg/store/pushlog.log is the truth: what pushlog2.db says differently, an edit that no push has taken down yet
    included, is replaced, and every difference is shown. A repository without that file gets it from its pushlog2.db, and from
    where the file is damaged on, pushlog2.db is believed.

    Returns 0 on success.
    """
    from . import checking

    return checking.repairpushlog(ui, repo, **options)


@predicate(b"pushhead()", safe=True, weight=10)
def pushhead(repo: localrepository, subset: abstractsmartset, x: ParsedRevset) -> Any:
    """The last changeset of every push."""
    from . import revsets

    return revsets.pushhead(repo, subset, x)


@predicate(b"pushdate(interval)", safe=True, weight=10)
def pushdate(repo: localrepository, subset: abstractsmartset, x: ParsedRevset) -> Any:
    """Changesets that were pushed within the interval, see :hg:`help dates`."""
    from . import revsets

    return revsets.pushdate(repo, subset, x)


@predicate(b"pushuser(string)", safe=True, weight=10)
def pushuser(repo: localrepository, subset: abstractsmartset, x: ParsedRevset) -> Any:
    """Changesets pushed by users whose name contains the string, in any case.

    The prefixes ``re:`` and ``literal:`` work.
    """
    from . import revsets

    return revsets.pushuser(repo, subset, x)


@predicate(b"pushid(number)", safe=True, weight=10)
def pushid(repo: localrepository, subset: abstractsmartset, x: ParsedRevset) -> Any:
    """The changesets of the push with this number; none for an unknown number."""
    from . import revsets

    return revsets.pushid(repo, subset, x)


@predicate(b"pushrev(set)", safe=True, weight=10)
def pushrev(repo: localrepository, subset: abstractsmartset, x: ParsedRevset) -> Any:
    """All changesets of the pushes that brought those of the set."""
    from . import revsets

    return revsets.pushrev(repo, subset, x)


def _find_push(context: engine, mapping: dict[bytes, Any]) -> Push | None:
    from . import pushed

    return pushed.find_push(context, mapping)


@keyword(b"pushid", requires={b"ctx", b"repo", b"cache"})
def show_id(context: engine, mapping: dict[bytes, Any]) -> int | None:
    """Integer. The number of the push that brought the changeset."""
    push = _find_push(context, mapping)
    return None if push is None else push.id


@keyword(b"pushuser", requires={b"ctx", b"repo", b"cache"})
def show_user(context: engine, mapping: dict[bytes, Any]) -> bytes | None:
    """String. Who pushed the changeset."""
    from . import pushed

    push = _find_push(context, mapping)
    return None if push is None else pushed.local(push.user)


@keyword(b"pushdate", requires={b"ctx", b"repo", b"cache"})
def show_date(context: engine, mapping: dict[bytes, Any]) -> Any:
    """Date information. When the changeset was pushed."""
    push = _find_push(context, mapping)
    return None if push is None else templateutil.date((push.date, 0), showfmt=b"%d.0%d")


@keyword(b"pushbasenode", requires={b"ctx", b"repo", b"cache"})
def show_base(context: engine, mapping: dict[bytes, Any]) -> bytes | None:
    """String. The first changeset of the push that brought the changeset."""
    push = _find_push(context, mapping)
    return None if push is None else push.nodes[0].encode("ascii")


@keyword(b"pushheadnode", requires={b"ctx", b"repo", b"cache"})
def show_head(context: engine, mapping: dict[bytes, Any]) -> bytes | None:
    """String. The last changeset of the push that brought the changeset."""
    push = _find_push(context, mapping)
    return None if push is None else push.nodes[-1].encode("ascii")
