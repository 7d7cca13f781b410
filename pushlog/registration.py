# SPDX-License-Identifier: GPL-2.0-or-later
"""The tables that Mercurial reads when it loads the extension.

They are commands, revsets, template keywords, wire commands, and the wrappers of its functions. A push needs none of the modules
behind them, so the first call imports each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mercurial import registrar, templateutil, wireprotov1server
from mercurial.i18n import _
from mercurial.localrepo import localrepository
from mercurial.ui import ui as Ui

from . import seams

if TYPE_CHECKING:
    from mercurial.templater import engine
    from mercurial.wireprototypes import baseprotocolhandler

    from .store.entry import Push

# Mercurial gives another name to a package that it loads by its path.
_WIRE, _PUSHED = f"{__package__}.wire", f"{__package__}.pushed"
# The modules that record a push, in the order in which it uses them: Mercurial's, then ours.
OF_A_PUSH = (
    *(f"mercurial.{name}" for name in ("exchange", "transaction", "bookmarks", "pushkey", "match", "context")),
    *(f"mercurial.{name}" for name in ("manifest", "filelog", "progress", "utils.storageutil", "revlogutils.deltas")),
    *(f"{__package__}.store.{name}" for name in ("frames", "appendfile", "boot", "statements")),
    "_sqlite3",
    *(
        f"{__package__}.store.{name}"
        for name in ("connections", "entry", "database", "derivation", "storage", "session")
    ),
    f"{__package__}.recording",
)

record = seams.loading(f"{__package__}.recording", "record")
record_commit = seams.loading(f"{__package__}.recording", "record_commit")
_withholds = seams.loading(f"{__package__}.limit", "withholds")
_open_attribute = seams.loading(f"{__package__}.attribute", "RepositoryPushlog")

cmdtable: dict[bytes, Any] = {}
command = registrar.command(cmdtable)
predicate = registrar.revsetpredicate()
keyword = registrar.templatekeyword()


def wrap() -> None:
    """Wrap Mercurial's functions and offer both wire commands, once per process.

    Every local repository of the process gets the attribute ``pushlog``, for other extensions.
    """
    localrepository.pushlog = property(_pushlog_of)  # type: ignore[attr-defined]
    seams.wrap("mercurial.wireprotov1server", "_capabilities", announce)
    seams.wrap("mercurial.exchange", "unbundle", seams.loading(f"{__package__}.recording", "name_obstacle"))
    seams.wrap("mercurial.exchange", "_pullobsolete", seams.loading(f"{__package__}.fetching", "pull"))
    seams.wrap("mercurial.repair", "strip", seams.loading(f"{__package__}.stripping", "strip"))
    seams.wrap("mercurial.localrepo", "localrepository.rollback", seams.loading(f"{__package__}.stripping", "rollback"))
    seams.wrap("mercurial.localrepo", "localrepository.recover", seams.loading(f"{__package__}.stripping", "recover"))
    offer = wireprotov1server.wireprotocommand
    offer(b"pushlog", b"firstpush", permission=b"pull")(seams.loading(_WIRE, "serve_pushlog"))
    offer(b"pushlog-stream", b"firstpush", permission=b"pull")(seams.loading(_WIRE, "serve_pushlog_stream"))


def _pushlog_of(repo: localrepository) -> Any:
    """Return the attribute; hide it where the repository is on another machine."""
    if not repo.local():
        raise AttributeError("pushlog")
    return _open_attribute(repo)


def announce(orig: Any, repo: localrepository, proto: baseprotocolhandler) -> list[bytes]:
    decide = getattr(repo.unfiltered(), "_pushlog_limit", None)
    last = None if decide is None else decide()
    # If a client has more pushes, its `fetching` reports that this server is behind.
    more = [] if last is None else [b"pushlog-last=%d" % last]
    if repo.filtername != b"served" and _withholds(repo):
        more.append(b"pushlog-withholds")
    return [*orig(repo, proto), b"pushlog", b"pushlog-stream", *more]


@command(
    b"verifypushlog",
    [(b"", b"since", b"", _(b"check this changeset and those after it"), _(b"REV"))],
    _(b"hg verifypushlog [--since REV]"),
    helpcategory=command.CATEGORY_MAINTENANCE,
)
def verifypushlog(ui: Ui, repo: localrepository, **options: Any) -> int:
    """check that the pushlog and the repository agree

    Every changeset must belong to exactly one push, and every push name changesets that exist. Hidden changesets count. A push
    without changesets (a strip removed them) is only mentioned. Changesets from before the pushlog are an error, shown in
    one line; --since leaves them out.

    Returns 0 if they agree.
    """
    from . import checking

    return checking.verifypushlog(ui, repo, **options)


@command(b"repairpushlog", [], _(b"hg repairpushlog"), helpcategory=command.CATEGORY_MAINTENANCE)
def repairpushlog(ui: Ui, repo: localrepository, **options: Any) -> int:
    """rebuild pushlog2.db from the pushlog's file

    The file .hg/store/pushlog.log is the truth: every difference in pushlog2.db is shown and replaced, also an edit that no push
    has recorded yet. A repository without that file gets it from its pushlog2.db. Where the file is damaged, pushlog2.db counts
    from there on.

    Returns 0 on success.
    """
    from . import checking

    return checking.repairpushlog(ui, repo, **options)


@command(b"copypushlog", [], _(b"hg copypushlog SOURCE"), helpcategory=command.CATEGORY_MAINTENANCE)
def copypushlog(ui: Ui, repo: localrepository, source: bytes, **options: Any) -> int:
    """copy the pushes of a server into pushlog2.db, for another extension

    For a repository whose pushlog2.db is written by hg.mozilla.org's extension, and a server that runs this one: the pushes that
    the repository lacks come with their ids, users and dates. Pull their changesets before. Only pushlog2.db is written, in the
    schema of that extension; after an error or a kill it is as before, and the command can be repeated.

    If the repository and the server have different pushes of one id, nothing is copied, and both are shown.

    Returns 0 on success.
    """
    from . import copying

    return copying.copypushlog(ui, repo, source)


# The changesets that each revset selects, by declaration.
_REVSETS = {
    b"pushhead()": "The last changeset of every push.",
    b"pushdate(interval)": "Changesets that were pushed within the interval, see :hg:`help dates`.",
    b"pushuser(string)": """Changesets pushed by users whose name contains the string, in any case.

    The prefixes ``re:`` and ``literal:`` work.
    """,
    b"pushid(number)": "The changesets of the push with this number; none for an unknown number.",
    b"pushrev(set)": "All changesets of the pushes that brought a changeset of the set.",
}

for _declaration, _text in _REVSETS.items():
    _select = seams.loading(f"{__package__}.revsets", _declaration.partition(b"(")[0].decode())
    _select.__doc__ = _text
    predicate(_declaration, safe=True, weight=10)(_select)

_find_push = seams.loading(_PUSHED, "find_push")
_find_named = seams.loading(_PUSHED, "find_named")
_local = seams.loading(_PUSHED, "local")


def _offer_keyword(
    name: bytes, show: Callable[[Push], Any], text: str, find: Callable[..., Push | None] = _find_push
) -> None:
    """Offer a template keyword, which is None for a changeset without a push."""

    def show_push(context: engine, mapping: dict[bytes, Any]) -> Any:
        push = find(context, mapping)
        return None if push is None else show(push)

    show_push.__doc__ = text
    keyword(name, requires={b"ctx", b"repo", b"cache"})(show_push)


_offer_keyword(b"pushid", lambda push: push.id, "Integer. The number of the push that brought the changeset.")
_offer_keyword(b"pushuser", lambda push: _local(push.user), "String. Who pushed the changeset.")
_offer_keyword(
    b"pushdate",
    lambda push: templateutil.date((push.date, 0), showfmt=b"%d.0%d"),
    "Date information. When the changeset was pushed.",
)
_offer_keyword(
    b"pushbasenode",
    lambda push: push.nodes[0].encode("ascii"),
    "String. The first changeset of the push that brought the changeset.",
    _find_named,
)
_offer_keyword(
    b"pushheadnode",
    lambda push: push.nodes[-1].encode("ascii"),
    "String. The last changeset of the push that brought the changeset.",
    _find_named,
)
