# SPDX-License-Identifier: GPL-2.0-or-later
"""The pages of the dashboard.

Each shows the newest view. A guest sees no free text, because that may name repositories.
"""

import functools
import itertools
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

import structlog
from starlette.applications import Starlette
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from notifier.clients.database import is_there

from ..config import address
from ..status.pushes import CHANGESET, PushQuery, name_nodes
from ..words.errors import BadConfig, MalformedEvent, Unavailable
from ..words.event import read_disclosure
from ..words.records import DESTINATION_KEY
from ..words.shape import plain
from .acting import ActEndpoint
from .acts import ActJournal
from .deliveries import STATES, list_deliveries, list_destinations
from .drawing import draw_timeline
from .feed import Feed
from .graphs.curves import HEIGHT, SPANS, WIDTH, Graph, draw_graphs
from .guard import SIGN_IN, Guard
from .pages import AsciiJson, render
from .readers import Readers
from .recent import RecentEvent
from .settings import DashboardSettings
from .sources import Sources
from .tracing import NotRead, trace_event
from .view import (
    SHORT,
    SORTS,
    Condition,
    MirrorRow,
    RepositoryRow,
    ServiceRow,
    View,
    order_rows,
    select_pushes,
    select_rows,
)
from .watcher import NOT_READ, LogWatcher

# Repositories of an answer to a program, and rows of a page: a screen of a desk, some of a phone.
PAGE, ROWS = 100, 25
# Words of a search, each of which all remembered events are searched for.
WORDS = 8
# Rows of waiting repositories on the first page.
WAITING = 10

# Most listed acts, and most listed decisions of the aggregator.
ACTS, DECISIONS = 100, 10

# Paths whose visibility is remembered.
REMEMBERED = 50_000

logger = structlog.get_logger()


class _SeqConvertor(IntegerConvertor):
    """A sequence in an address: a number that can be one."""

    regex = "[0-9]{1,18}"


register_url_convertor("seq", _SeqConvertor())


def make_application(
    sources: Sources, watcher: LogWatcher, readers: Readers, journal: ActJournal | None, settings: DashboardSettings
) -> Starlette:
    """Make the application; it answers by the names of its address, of the settings and of this machine."""
    acts = ActEndpoint(journal, sources.carry_out)
    pages = _DashboardPages(sources, watcher, journal, acts.make_token)
    routes = [
        Route("/", pages.show_overview),
        Route("/repositories", pages.show_repositories),
        Route("/repository/{repository}", pages.show_repository),
        Route("/repository/{repository}/event/{seq:seq}", pages.show_event),
        Route("/mirror/{name}", pages.show_mirror),
        Route("/graphs", pages.show_graphs),
        Route("/pushes", pages.show_pushes),
        Route("/pushes/live", Feed(watcher, pages.name_for).answer),
        Route("/deliveries", pages.show_deliveries),
        Route("/destination/{destination}", pages.show_deliveries),
        Route("/roster", pages.show_roster),
        Route("/acts", pages.show_acts, methods=["GET"]),
        Route("/acts", acts.answer, methods=["POST"]),
        Route("/api/overview.json", pages.list_overview),
        Route("/api/repositories.json", pages.list_repositories),
        Route(SIGN_IN, lambda request: RedirectResponse("/", 303)),
        Mount("/static", StaticFiles(directory=Path(__file__).with_name("static"))),
    ]
    own, _ = address(settings.listen, "dashboard.listen")
    allowed = ["localhost", "127.0.0.1", "[::1]", *map(_name_host, (own, *settings.hosts))]
    application = Starlette(
        routes=routes,
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=allowed, www_redirect=False),
            Middleware(Guard, readers=readers),
        ],
        exception_handlers={HTTPException: _show_refusal, Exception: _log_crash},
    )
    application.state.settings = settings
    return application


def _name_host(host: str) -> str:
    """Return how a browser names this host."""
    try:
        return f"[{IPv6Address(host)}]"
    except ValueError:
        return host


def _show_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    title = {404: "Not found", 503: "Not available"}.get(error.status_code, "Refused")
    text = "There is no such page." if error.detail == "Not Found" else error.detail
    return render("message.html", request, status=error.status_code, title=title, text=text)


def _log_crash(request: Request, error: Exception) -> Response:
    logger.error("page crashed", path=request.url.path, kind=type(error).__name__, exc_info=error)
    return PlainTextResponse("The page cannot be shown; the log lines of the dashboard say why.\n", 500)


def _require_reader(request: Request) -> None:
    if not request.state.role.sees_all:
        raise HTTPException(403, "Guests may not see this page, because its texts may name private repositories.")


def _find_destination(view: View, name: str | None, *, is_known: bool) -> ServiceRow | None:
    """Find what the log says of a destination; raises 404 if neither log nor notifier know it."""
    found = next((row for row in view.services if row.name == f"{DESTINATION_KEY}{name}"), None)
    if name is not None and found is None and not is_known:
        raise HTTPException(404, "There is no such destination.")
    return found


class _DashboardPages:
    """The answers; several threads call them."""

    def __init__(
        self, sources: Sources, watcher: LogWatcher, journal: ActJournal | None, make_token: Callable[[str], str]
    ) -> None:
        self._sources, self._watcher, self._journal, self._make_token = sources, watcher, journal, make_token
        self._drawn: dict[str, tuple[float, list[Graph]]] = {}
        self._is_public = functools.lru_cache(REMEMBERED)(sources.is_public)

    def name_for(self, request: Request) -> Callable[[str, str], str]:
        """Return a function that names a repository, by id and path, for this reader."""
        if request.state.role.sees_all:
            return lambda repository, path: path
        return lambda repository, path: path if self._is_public(path) else repository[:SHORT]

    def may_see(self, request: Request, path: str) -> bool:
        """Return whether this reader may see the name, and so the page, of this path."""
        return request.state.role.sees_all or self._is_public(path)

    def show_overview(self, request: Request) -> Response:
        sort = _read_sort(request, "mirror", "state", "behind", "lag", "detached", "seen")
        return self._render(
            request,
            "overview.html",
            sort=sort,
            mirrors=lambda view: sorted(view.mirrors, key=SORTS[sort]) if sort else view.mirrors,
            waiting=lambda view: self._list_held(request, view),
        )

    def show_mirror(self, request: Request) -> Response:
        name = request.path_params["name"]

        def find(view: View) -> MirrorRow:
            for row in view.mirrors:
                if row.name == name:
                    return row
            raise HTTPException(404, "There is no such mirror.")

        return self._render(
            request,
            "mirror.html",
            row=find,
            mirror=lambda view: view.picture.roster.mirror(name),
            beat=lambda view: view.picture.heartbeats.get(name),
            lags=lambda view: sorted(view.lags.get(name, ()), key=lambda each: -each[1].unapplied)[:ROWS],
            detached=lambda view: [ack for ack in view.detached if ack.mirror == name][:ROWS],
        )

    def _list_held(self, request: Request, view: View) -> list[tuple[RepositoryRow, list[str]]]:
        """List the longest queues of notices, each with the mirrors that it waits for."""
        longest = sorted(self._order(request, view), key=lambda row: -row.waits)[:WAITING]
        return [(row, view.picture.holding(row.state)) for row in longest if row.waits]

    def show_repositories(self, request: Request) -> Response:
        text, condition, page = _read_query(request)
        sort = _read_sort(request, "repository", "event", "released", "announced")
        return self._render(
            request,
            "repositories.html",
            sort=sort,
            q=text,
            asked={"q": text, "state": condition.value if condition else "", "sort": sort},
            condition=condition,
            conditions=list(Condition),
            page=page,
            rows=lambda view: self._sort(request, self._select(request, view), sort),
            size=ROWS,
        )

    def _select(self, request: Request, view: View) -> list[RepositoryRow]:
        text, condition, _ = _read_query(request)
        return select_rows(self._order(request, view), text, condition, self.name_for(request))

    def _sort(self, request: Request, rows: list[RepositoryRow], sort: str) -> list[RepositoryRow]:
        name = self.name_for(request)
        key = SORTS.get(sort, lambda row: name(row.state.repository, row.state.path))
        return sorted(rows, key=key) if sort else rows

    def _order(self, request: Request, view: View) -> Sequence[RepositoryRow]:
        """Return the repositories, the worst first.

        For guests, equals are in the order of their shown names, because the order by path tells of private ones.
        """
        if request.state.role.sees_all:
            return view.repositories
        name = self.name_for(request)
        return order_rows(view.repositories, lambda row: name(row.state.repository, row.state.path))

    def show_repository(self, request: Request) -> Response:
        return self._render(
            request,
            "repository.html",
            state=lambda view: self._find(request, view),
            acks=lambda view: view.picture.levels(request.path_params["repository"]),
            holding=lambda view: view.picture.holding(self._find(request, view)),
            find_verb=lambda view: functools.partial(view.find_verb, self._find(request, view)),
        )

    def _find(self, request: Request, view: View) -> Any:
        """Find the repository of the address, or raise 404, also if it may not be seen."""
        state = view.picture.states.get(request.path_params["repository"])
        if state is None or not self.may_see(request, state.path):
            raise HTTPException(404, "There is no such repository, or you may not see it.")
        return state

    def show_event(self, request: Request) -> Response:
        view = self._watcher.fetch_view()
        if view is None:
            return self._render(request, "event.html")
        state, seq = self._find(request, view), request.path_params["seq"]
        try:
            event, steps = trace_event(self._sources, view, state, seq)
            shown = read_disclosure(event)
        except (NotRead, MalformedEvent) as error:
            text = f"Event {seq} of {state.path} cannot be shown: {error}."
            return render("message.html", request, watcher=self._watcher, status=404, title="Not read", text=text)
        return self._render(
            request,
            "event.html",
            state=state,
            event=event,
            nodes=name_nodes(shown),
            bookmarks=shown.bookmarks,
            steps=steps,
            picture=draw_timeline(steps),
        )

    def show_pushes(self, request: Request) -> Response:
        """List the pushes that are looked for; a changeset of one push leads to its timeline."""
        text, page = _read_query(request)[0].strip(), _read_query(request)[2]
        names = ("user", "bookmark", "repository")
        fields = {name: request.query_params.get(name, "")[:500].strip() for name in names}
        query = PushQuery(user=fields["user"], bookmark=fields["bookmark"], repository=fields["repository"])
        words = set(text.casefold().split())
        if len(words) > WORDS:
            raise HTTPException(400, f"A search may have at most {WORDS} words.")
        view = self._watcher.fetch_view()
        found: list[RecentEvent] = []
        if view is not None:
            show = functools.partial(self._show_event_to, request)
            begin = (page - 1) * ROWS
            found = [*itertools.islice(select_pushes(view.newest, words, query, show), begin, begin + ROWS + 1)]
        if CHANGESET.match(text) and len(found) == 1 and page == 1 and self.may_see(request, found[0].path):
            return RedirectResponse(f"/repository/{found[0].repository}/event/{found[0].seq}", 303)
        asked = {name: value for name, value in {"q": text, **fields}.items() if value}
        command = f"vcsreplicator trace {shlex.quote(text)}" if CHANGESET.match(text) else None
        return self._render(
            request,
            "pushes.html",
            rows=found[:ROWS],
            has_more=len(found) > ROWS,
            page=page,
            asked=asked,
            command=command,
        )

    def _show_event_to(self, request: Request, event: RecentEvent) -> RecentEvent:
        """Remove from an event what this reader may not see."""
        if request.state.role.sees_all:
            return event
        if self._is_public(event.path):
            return replace(event, user=None)
        return replace(event, path=event.repository[:SHORT], repository="", user=None, nodes=(), bookmarks=())

    def show_deliveries(self, request: Request) -> Response:
        """Show all destinations, or the one of the address."""
        _require_reader(request)
        only = request.path_params.get("destination")
        notifier, wanted = self._sources.notifier, request.query_params.get("state", "")
        content: dict[str, Any] = {"destinations": [], "requests": [], "lists": [], "trouble": None}
        is_here = notifier is not None and is_there(notifier.state)
        try:
            if notifier is not None and is_here:
                now = self._sources.clock.now()
                content["destinations"], content["requests"] = list_destinations(notifier, now, only)
                content["lists"] = list_deliveries(notifier, wanted if wanted in STATES else None)
        except (BadConfig, Unavailable) as error:
            content["trouble"] = str(error)
        if only is not None:
            content["destinations"] = [row for row in content["destinations"] if row["name"] == only]
            content["lists"] = [each for each in content["lists"] if each["destination"] == only]
        content |= {"is_here": is_here, "state": wanted, "states": STATES, "only": only}
        is_known = bool(content["destinations"])
        return self._render(
            request,
            "deliveries.html",
            notifier=notifier,
            service=lambda view: _find_destination(view, only, is_known=is_known),
            **content,
        )

    def show_graphs(self, request: Request) -> Response:
        span = request.query_params.get("span", "")
        span = span if span in SPANS else "hour"
        samples = self._watcher.history.samples
        now = samples[-1].at if samples else 0.0
        # Each is drawn once for each sample, however many readers ask.
        if self._drawn.get(span, (-1.0, []))[0] != now:
            self._drawn[span] = now, draw_graphs(samples, SPANS[span], now)
        return self._render(
            request,
            "graphs.html",
            span=span,
            spans=list(SPANS),
            begin=now - SPANS[span],
            end=now,
            graphs=self._drawn[span][1],
            is_kept=request.app.state.settings.history is not None,
            width=WIDTH,
            height=HEIGHT,
        )

    def show_roster(self, request: Request) -> Response:
        _require_reader(request)
        return self._render(
            request,
            "roster.html",
            rows=View.list_roster,
            decisions=lambda view: view.picture.roster.recent[: -DECISIONS - 1 : -1],
        )

    def show_acts(self, request: Request) -> Response:
        _require_reader(request)
        try:
            acts = self._journal.list_newest(ACTS) if self._journal else []
        except (BadConfig, Unavailable) as error:
            raise HTTPException(503, f"The acts cannot be read: {error}.") from None
        return self._render(request, "acts.html", acts=acts, is_recording=self._journal is not None)

    def list_overview(self, request: Request) -> Response:
        view, is_reader = self._watcher.fetch_view(), request.state.role.sees_all
        content: dict[str, Any] = {"trouble": self._watcher.trouble if is_reader else bool(self._watcher.trouble)}
        if view is None:
            return AsciiJson(content, 503)
        services = [plain(row) if is_reader else {**plain(row), "troubles": len(row.troubles)} for row in view.services]
        return AsciiJson(
            {
                **content,
                "now": view.now,
                "mirrors": [plain(row) for row in view.mirrors],
                "services": services,
                "findings": plain(view.findings) if is_reader else len(view.findings),
                "repositories": len(view.repositories),
                "waiting": view.waiting,
                "pushes": view.pushes,
            }
        )

    def list_repositories(self, request: Request) -> Response:
        view, name = self._watcher.fetch_view(), self.name_for(request)
        if view is None:
            return AsciiJson({"repositories": []}, 503)
        rows, page = self._select(request, view), _read_query(request)[2]
        shown = [
            {
                "name": name(row.state.repository, row.state.path),
                "condition": row.condition,
                "seq": row.state.seq,
                "released": row.state.released,
                "noticed": row.state.noticed,
            }
            for row in rows[(page - 1) * PAGE : page * PAGE]
        ]
        return AsciiJson({"count": len(rows), "page": page, "repositories": shown})

    def _render(self, request: Request, template: str, **content: Any) -> Response:
        """Render a page.

        Functions in its content get the view. Before the first view, the answer says so with 503.
        """
        view = self._watcher.fetch_view()
        if view is None:
            text, shown = "The dashboard has not read the log since its start.", {"watcher": self._watcher}
            if self._watcher.trouble == NOT_READ:
                text, shown = "The dashboard is reading the log. Load this page again in a few seconds.", {}
            return render("message.html", request, **shown, status=503, title="Not read yet", text=text)
        made = {key: value(view) if callable(value) else value for key, value in content.items()}
        made["token"] = lambda: self._make_token(request.state.user.name)
        made |= {"name": self.name_for(request), "may_see": lambda path: self.may_see(request, path)}
        return render(template, request, watcher=self._watcher, view=view, **made)


def _read_sort(request: Request, *columns: str) -> str:
    """Return the column that is asked for; nonsense counts as absent."""
    sort = request.query_params.get("sort", "")
    return sort if sort in columns else ""


def _read_query(request: Request) -> tuple[str, Condition | None, int]:
    """Return text, condition and page that are asked for; nonsense counts as absent."""
    query = request.query_params
    condition, page = query.get("state", ""), query.get("page", "1")
    return (
        query.get("q", "")[:500],
        Condition(condition) if condition in set(Condition) else None,
        int(page) if page.isascii() and page.isdigit() and 0 < len(page) < 7 and int(page) else 1,
    )
