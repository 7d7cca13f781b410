# SPDX-License-Identifier: GPL-2.0-or-later
"""Acts of operators: only theirs, only from our own pages, recorded before they are done, and done once."""

import asyncio
import html
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
import structlog
from starlette.routing import Mount, Route
from starlette.types import Message

from hgext.vcsreplicator.dashboard.acts import ActJournal, ActKind, ActOutcome, OperatorAct, read_act
from hgext.vcsreplicator.dashboard.pages import format_instant
from hgext.vcsreplicator.dashboard.readers import Readers, read_users
from hgext.vcsreplicator.log import ROSTER
from hgext.vcsreplicator.words.errors import BadConfig
from hgext.vcsreplicator.words.roster import KEY, Mirror, MirrorState, Roster
from notifier.destinations.state import Kind, StateDatabase
from tests.dashboard.conftest import (
    AS_OPERATOR,
    AS_READER,
    Installation,
    Site,
    fill,
    fill_notifier,
    pages,
    settings,
)
from tests.dashboard.test_pages import addresses

OURS = {"sec-fetch-site": "same-origin"}
FORM = {"kind": "deactivate", "target": "beta", "reason": "its disk is full", "confirm": "yes"}


@pytest.fixture
def installation() -> Installation:
    return fill()


@pytest.fixture
def site(installation: Installation, tmp_path: Path) -> Iterator[Site]:
    with pages(installation, settings(tmp_path)) as site:
        yield site


@pytest.fixture
def journal(site: Site, installation: Installation, tmp_path: Path) -> ActJournal:
    return ActJournal(str(tmp_path / "acts.db"), installation.sources.log)


def find_tokens(site: Site, address: str = "/roster") -> list[str]:
    """The tokens of the forms of a page, as its operator gets them."""
    text = site.get(address, headers=AS_OPERATOR).text
    return [html.unescape(token) for token in re.findall(r'name="token" value="([^"]+)"', text)]


def send(site: Site, fields: dict[str, str], *, who: dict[str, str] = AS_OPERATOR, **headers: str) -> httpx.Response:
    """Send a form as a browser does from one of our pages, unless `headers` say otherwise."""
    said = {**OURS, **who, **{name.replace("_", "-"): value for name, value in headers.items()}}
    said.setdefault("content-type", "application/x-www-form-urlencoded")
    return site.request(
        "POST", "/acts", headers={name: value for name, value in said.items() if value}, content=urlencode(fields)
    )


def test_an_act_is_recorded_with_who_when_and_why_and_done_once(
    site: Site, installation: Installation, journal: ActJournal
) -> None:
    fields = {**FORM, "token": find_tokens(site)[0]}
    for _ in range(2):  # the second is a reload
        answer = send(site, fields)
        assert (answer.status_code, answer.headers["location"]) == (303, "/acts#act-1")
    [(act, number)] = installation.acts
    [recorded] = journal.list_newest(10)
    assert (recorded.number, recorded.act, recorded.outcome, recorded.result) == (
        number,
        act,
        ActOutcome.DONE,
        "deactivated",
    )
    assert (act.kind, act.target, act.who, act.reason) == (ActKind.DEACTIVATE, "beta", "olga", "its disk is full")
    assert act.at > 1_700_000_000
    text = site.get("/acts", headers=AS_READER).text
    for words in ('id="act-1"', "olga", "deactivate beta", "its disk is full", "done: deactivated"):
        assert words in text


def test_a_form_sent_again_with_other_words_is_refused(site: Site, installation: Installation) -> None:
    fields = {**FORM, "token": find_tokens(site)[0]}
    assert send(site, fields).status_code == 303
    for changed in ({"target": "alpha"}, {"reason": "another"}, {"repository": "x"}, {"kind": "activate"}):
        answer = send(site, {**fields, **changed})
        assert answer.status_code == 409
        assert "Nothing was done: this form was sent before, as act 1" in answer.text
    assert len(installation.acts) == 1
    assert send(site, fields).status_code == 303


def test_a_form_is_of_one_act_and_each_form_of_a_page_has_its_own(site: Site, installation: Installation) -> None:
    tokens = find_tokens(site)
    assert len(tokens) == len(set(tokens)) == 2
    for token in tokens:
        send(site, {**FORM, "token": token})
    assert len({number for _, number in installation.acts}) == 2


def test_no_act_works_without_a_token_on_any_route_and_method(site: Site, installation: Installation) -> None:
    fields = {**FORM, "token": find_tokens(site)[0]}
    methods = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
    methods |= {method for route in site.app.routes if isinstance(route, Route) for method in route.methods or ()}
    taking = [
        route.path
        for route in site.app.routes
        if not isinstance(route, Mount) and "POST" in (getattr(route, "methods", None) or ())
    ]
    assert taking == ["/acts"]
    asked = 0
    for address in addresses(installation, site):
        for method in sorted(methods):
            for credentials in ({}, {"authorization": "Bearer wrong"}, {"x-remote-user": "olga"}):
                headers = {**OURS, **credentials, "content-type": "application/x-www-form-urlencoded"}
                answer = site.request(method, address, headers=headers, content=urlencode(fields))
                assert answer.status_code == 401, (method, address)
                asked += 1
    assert asked > 200
    assert not installation.acts
    assert send(site, fields).status_code == 303


def test_no_route_but_one_acts_for_an_operator(site: Site, installation: Installation) -> None:
    fields = {**FORM, "token": find_tokens(site)[0]}
    for address in addresses(installation, site):
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            if (method, address) == ("POST", "/acts") or address in ("/pushes/live", "/sign-in"):
                continue
            headers = {**OURS, **AS_OPERATOR, "content-type": "application/x-www-form-urlencoded"}
            answer = site.request(method, f"{address}?{urlencode(fields)}", headers=headers, content=urlencode(fields))
            assert answer.status_code in ({200, 404} if method == "GET" else {404, 405}), (method, address)
    assert not installation.acts


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"sec_fetch_site": "none"}, 403),
        ({"sec_fetch_site": ""}, 403),
        ({"sec_fetch_site": "", "origin": "null"}, 403),
        ({"sec_fetch_site": "", "origin": "http://evil.example"}, 403),
        ({"sec_fetch_site": "", "origin": "http://localhost.evil.example"}, 403),
        ({"sec_fetch_site": "", "origin": "http://["}, 403),
        ({"sec_fetch_site": "cross-site", "origin": "http://localhost"}, 403),
        ({"sec_fetch_site": "", "origin": "https://localhost"}, 303),
        ({"content_type": "text/plain"}, 415),
        ({"content_type": "application/json"}, 415),
    ],
)
def test_a_form_of_another_site_is_refused(
    site: Site, installation: Installation, headers: dict[str, str], status: int
) -> None:
    assert send(site, {**FORM, "token": find_tokens(site)[0]}, **headers).status_code == status
    assert len(installation.acts) == (status == 303)


def test_the_token_of_a_form_is_of_this_user_and_process(
    site: Site, installation: Installation, tmp_path: Path
) -> None:
    token = find_tokens(site)[0]
    other = tmp_path / "other"
    other.mkdir()
    with pages(installation, settings(other)) as restarted:
        [old, *_] = find_tokens(restarted)
    form, _, signature = token.partition(".")
    for wrong in ("", ".", form, f".{signature}", f"x{token}", token[:-1], f"é.{signature}", f"{form}.é", old):
        answer = send(site, {**FORM, "token": wrong})
        assert answer.status_code == 403
        assert "load its page again" in answer.text
    assert send(site, FORM).status_code == 403
    assert not installation.acts


def test_an_operator_whom_a_proxy_names_has_tokens_of_their_own(installation: Installation, tmp_path: Path) -> None:
    file = tmp_path / "proxied"
    file.write_text("olga:operator:-\nomar:operator:-\nrita:reader:-\n")
    made = settings(tmp_path, proxy_header="X-Remote-User", trusted_proxies=("10.0.0.7",))
    object.__setattr__(made, "users", str(file))
    olga, omar, rita = ({"x-remote-user": name} for name in ("olga", "omar", "rita"))
    with pages(installation, made) as site:
        token = re.findall(r'name="token" value="([^"]+)"', site.get("/roster", headers=olga).text)[0]
        for who in (omar, rita, {}):
            assert send(site, {**FORM, "token": token}, who=who).status_code == (403 if who else 401)
        assert send(site, {**FORM, "token": token}, who=olga).status_code == 303
    assert [act.who for act, _ in installation.acts] == ["olga"]


def test_the_roster_says_in_how_many_repositories_notices_wait(site: Site) -> None:
    page = site.get("/roster", headers=AS_READER).text
    assert '<a href="/mirror/alpha">alpha</a>' in page
    text = re.sub(r"<[^>]+>", " ", page)
    assert re.findall(r"(alpha|beta) .*?(\d+) repositor", text, re.DOTALL) == [("alpha", "0"), ("beta", "2")]


def test_the_roster_shows_which_mirror_is_a_candidate(tmp_path: Path) -> None:
    installation = fill()
    alpha = Mirror(name="alpha", state=MirrorState.ACTIVE, candidate=True)
    installation.write(ROSTER, KEY, Roster(mirrors=(alpha,)))
    with pages(installation, settings(tmp_path)) as site:
        assert "serving, candidate" in site.get("/roster", headers=AS_READER).text


def test_readers_see_no_form_and_may_not_act(site: Site, installation: Installation) -> None:
    token = find_tokens(site)[0]
    for address in ("/deliveries", "/roster", "/acts", f"/repository/{installation.chains['public/tools'].repository}"):
        assert 'method="post"' not in site.get(address, headers=AS_READER).text
    answer = send(site, {**FORM, "token": token}, who=AS_READER)
    assert (answer.status_code, "Only operators may do this" in answer.text) == (403, True)
    assert not installation.acts


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"kind": "drop"}, "no such act"),
        ({"kind": ""}, "no such act"),
        ({"target": " "}, "the field target is empty"),
        ({"reason": " "}, "the field reason is empty"),
        ({"confirm": ""}, "not confirmed"),
        ({"kind": "skip", "confirm": "no"}, "not confirmed"),
        ({"kind": "replay", "since": "1"}, "the field repository is empty"),
        ({"kind": "redeliver"}, "the field delivery is empty"),
        ({"reason": "x" * 301}, "at most 300 characters"),
        ({"reason": "a\nb"}, "in one line"),
        ({"target": "\x1b[31m"}, "in one line"),
    ],
)
def test_a_form_that_lacks_something_is_not_an_act(
    site: Site, installation: Installation, journal: ActJournal, changed: dict[str, str], words: str
) -> None:
    answer = send(site, {**FORM, "token": find_tokens(site)[0], **changed})
    assert answer.status_code == 400
    assert words in answer.text
    assert not installation.acts
    assert not journal.list_newest(1)


def test_odd_bodies_are_refused(site: Site, installation: Installation) -> None:
    headers = {**OURS, **AS_OPERATOR, "content-type": "application/x-www-form-urlencoded"}
    bodies = {
        b"kind=skip&kind=pause": 400,
        b"\xff\xfe": 400,
        b"kind=%ff": 400,
        "&".join(f"x{number}=1" for number in range(30)).encode(): 400,
        b"x" * 20_000: 413,
        b"": 403,
    }
    for body, status in bodies.items():
        assert site.request("POST", "/acts", headers=headers, content=body).status_code == status
    assert not installation.acts


def test_a_form_that_does_not_arrive_whole_is_no_crash(site: Site, installation: Installation) -> None:
    headers = {**OURS, **AS_OPERATOR, "host": "localhost", "content-type": "application/x-www-form-urlencoded"}
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/acts",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    arrived = [{"type": "http.request", "body": b"kind=pa", "more_body": True}, {"type": "http.disconnect"}]
    sent: list[Message] = []

    async def receive() -> Message:
        return arrived.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    with structlog.testing.capture_logs() as lines:
        asyncio.run(site.app(scope, receive, send))
    assert sent[0]["status"] == 400
    assert not lines
    assert not installation.acts


def test_a_dashboard_that_dies_in_an_act_leaves_it_begun(
    site: Site, installation: Installation, journal: ActJournal
) -> None:
    """What is on disk while the act is done is what a kill at that moment leaves."""
    seen: list[ActOutcome] = []
    installation.acts = Noting(lambda: seen.extend(each.outcome for each in journal.list_newest(9)))
    send(site, {**FORM, "token": find_tokens(site)[0]})
    assert seen == [ActOutcome.BEGUN]


def test_an_act_in_which_the_dashboard_fails_is_unknown(
    site: Site, installation: Installation, journal: ActJournal
) -> None:
    def fail() -> None:
        raise RuntimeError("a bug")

    installation.acts = Noting(fail)
    with structlog.testing.capture_logs() as lines:
        assert send(site, {**FORM, "token": find_tokens(site)[0]}).status_code == 303
    [recorded] = journal.list_newest(9)
    assert recorded.outcome is ActOutcome.UNKNOWN
    assert "a bug" in str(next(line for line in lines if line["event"] == "act failed")["exc_info"])


class Noting(list[Any]):
    """A list that calls back before it takes something."""

    def __init__(self, note: object) -> None:
        self._note = note

    def append(self, item: object) -> None:
        self._note()  # type: ignore[operator]
        super().append(item)


def test_an_act_without_an_outcome_is_shown_as_begun_and_where_to_look(
    installation: Installation, tmp_path: Path
) -> None:
    act = OperatorAct(kind=ActKind.SKIP, target="hooks", argument={"message": "m1"}, who="olga", reason="stuck", at=9.0)
    for number, kind in enumerate((ActKind.SKIP, ActKind.REDELIVER, ActKind.ACTIVATE)):
        ActJournal(str(tmp_path / "acts.db"), installation.sources.log).begin(replace(act, kind=kind), str(number))
    with pages(installation, settings(tmp_path)) as site:
        text = site.get("/acts", headers=AS_READER).text
    assert "skip hooks, message m1" in text
    assert "begun</strong>: no outcome is recorded" in text
    assert "request to the notifier</a> names act 1." in text
    assert "request to the notifier</a> names act 2." in text
    assert "decision of the aggregator</a> names act 3." in text


def test_an_act_that_may_have_been_done_is_shown_with_where_to_look(installation: Installation, tmp_path: Path) -> None:
    journal = ActJournal(str(tmp_path / "acts.db"), installation.sources.log)
    act = OperatorAct(kind=ActKind.PAUSE, target="hooks", argument={}, who="olga", reason="stuck", at=9.0)
    for outcome in (ActOutcome.UNKNOWN, ActOutcome.DONE):
        number, _ = journal.begin(act, outcome.value)
        journal.end(number, outcome, "no broker answers")
    with pages(installation, settings(tmp_path)) as site:
        text = site.get("/acts", headers=AS_READER).text
    assert "unknown</strong>: no broker answers. If it was done, a" in text
    assert "request to the notifier</a> names act 1." in text
    assert "names act 2" not in text


def test_what_cannot_be_recorded_is_not_done(site: Site, installation: Installation, tmp_path: Path) -> None:
    tokens = find_tokens(site)
    (tmp_path / "acts.db").unlink()
    (tmp_path / "acts.db").mkdir()
    answer = send(site, {**FORM, "token": tokens[0]})
    assert answer.status_code == 503
    assert "Nothing was done, as it cannot be recorded: dashboard.acts: " in answer.text
    assert not installation.acts
    assert site.get("/acts", headers=AS_READER).status_code == 503


def test_an_outcome_that_cannot_be_recorded_is_shown(site: Site, installation: Installation, tmp_path: Path) -> None:
    def lose_journal() -> None:
        (tmp_path / "acts.db").unlink()
        (tmp_path / "acts.db").mkdir()

    tokens = find_tokens(site)
    installation.acts = Noting(lose_journal)
    answer = send(site, {**FORM, "token": tokens[0]})
    assert answer.status_code == 503
    assert "done: deactivated. This cannot be recorded" in answer.text


def test_an_operator_without_a_journal_is_refused_at_start(tmp_path: Path) -> None:
    made = settings(tmp_path)
    object.__setattr__(made, "acts", None)
    with pytest.raises(BadConfig, match=r"dashboard\.acts: expected the path of a database, as olga is an operator"):
        Readers(made, read_users(str(made.users)))


def test_a_mirror_deactivated_for_a_repository_may_be_activated(tmp_path: Path) -> None:
    installation = fill()
    repository = installation.chains["public/firefox"].repository
    mirrors = (
        Mirror(name="alpha", state=MirrorState.INACTIVE),
        Mirror(name="beta", state=MirrorState.ACTIVE, deactivated=(repository,)),
        Mirror(name="gone", state=MirrorState.REMOVED, deactivated=(repository,)),
    )
    installation.write(ROSTER, KEY, Roster(mirrors=mirrors))
    with pages(installation, settings(tmp_path)) as site:
        text = site.get(f"/repository/{repository}", headers=AS_OPERATOR).text
        assert re.findall(r"<summary>(.*?)</summary>", text) == ["Activate beta for this repository"]
        text = site.get("/roster", headers=AS_OPERATOR).text
        assert re.findall(r"<summary>(.*?)</summary>", text) == ["Activate alpha", "Deactivate beta"]
        assert '"Deactivated for">public/firefox<' in text


def test_texts_of_operators_and_the_notifier_are_escaped_on_one_line(tmp_path: Path) -> None:
    installation = fill()
    installation.notifier = fill_notifier(tmp_path)
    odd = "<script>alert(1)</script>\x1b[31m\n'\""
    with closing(StateDatabase(str(tmp_path / "notifier.db"))) as state:
        condition = state.conditions()["pulse-v2"] | {"trouble": odd, "parts": [{"trouble": odd, "since": 1.0}]}
        state.record_condition("pulse-v2", condition, now=1.0)
        state.requests.ask(odd, Kind.PAUSE, {}, who=odd, now=1.0)
    act = OperatorAct(kind=ActKind.PAUSE, target=odd, argument={"message": odd}, who=odd, reason=odd, at=1.0)
    ActJournal(str(tmp_path / "acts.db"), installation.sources.log).begin(act, "form")
    with pages(installation, settings(tmp_path)) as site:
        for address, count in (("/deliveries", 4), ("/acts", 4)):
            text = site.get(address, headers=AS_OPERATOR).text
            assert "<script>alert" not in text
            assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[31m\\n&#39;&#34;") == count, address


def test_deliveries_are_listed_by_state_with_their_attempts(tmp_path: Path) -> None:
    installation = fill()
    installation.notifier = fill_notifier(tmp_path)

    def cells(state: str) -> list[tuple[str, ...]]:
        text = site.get(f"/deliveries?state={state}", headers=AS_READER).text
        section = text[text.index('id="list-hooks"') : text.index('id="requests"')]
        rows = re.findall(r"<tr>\s*(<th scope=\"row\".*?)</tr>", section, re.DOTALL)
        return [tuple(re.sub(r"<[^>]+>", "", cell).strip() for cell in row.strip().splitlines()) for row in rows]

    with pages(installation, settings(tmp_path)) as site:
        assert [row[0] for row in cells("")] == ["4", "3", "2", "1"] == [row[0] for row in cells("odd")]
        assert [row[:5] for row in cells("queued")] == [
            ("4", "ci", "queued", "0", "2023-11-14 22:15:00"),
            ("3", "ci", "queued", "3", "2023-11-14 22:20:00"),
        ]
        [(*_, answer)] = cells("exhausted")
        attempt = "2023-11-14 22:14:30 UTC: 500 after 0.250 s: &lt;b&gt;answer\\x1b 2&lt;/b&gt;"
        assert answer == f"status 500newest attempts{attempt}"
        assert cells("cancelled") == []
        assert "No delivery is cancelled." in site.get("/deliveries?state=cancelled", headers=AS_READER).text


def test_a_destination_whose_notifier_is_silent_is_not_called_delivering(tmp_path: Path) -> None:
    installation = fill()
    installation.notifier, now = fill_notifier(tmp_path), installation.clock.now()
    with closing(StateDatabase(str(tmp_path / "notifier.db"))) as state:
        said = state.conditions()["hooks"] | {"parts": []}
        for name, at in (("pulse-v2", now - 15), ("hooks", now - 16), ("archive", now + 3600)):
            state.record_condition(name, said, now=at)

    with pages(installation, settings(tmp_path)) as site:
        text = site.get("/deliveries", headers=AS_READER).text
    cells = re.findall(r'<td data-label="State".*?>(.*?)</td>', text)[:4]
    assert [re.sub(r"<[^>]+>", "", cell) for cell in cells] == [
        "delivering",
        f"no report since {format_instant(now - 16)} UTC; before that: delivering",
        f"no report since {format_instant(now + 3600)} UTC; before that: delivering",
        "never ran",
    ]


def test_without_a_section_of_the_notifier_the_page_says_so(site: Site) -> None:
    assert "has no section [notifier]" in site.get("/deliveries", headers=AS_READER).text


def test_only_the_fields_of_an_act_are_kept() -> None:
    fields = {**FORM, "kind": "pause", "repository": "r", "message": "m", "token": "t", "odd": "x"}
    assert read_act(fields, who="olga", at=1.0).argument == {}
    assert read_act({**FORM, "repository": ""}, who="olga", at=1.0).argument == {}
    replay = {**FORM, "kind": "replay", "repository": "a/b", "since": "7"}
    assert read_act(replay, who="olga", at=1.0).argument == {"repository": "a/b", "since": "7"}


def test_the_page_of_a_repository_offers_to_gate_it_or_not(site: Site, installation: Installation) -> None:
    repository = installation.chains["public/firefox"].repository
    text = site.get(f"/repository/{repository}", headers=AS_OPERATOR).text
    assert text.count('value="deactivate"') == 2
    assert text.count(f'name="repository" value="{repository}"') == 2
    assert text.count('name="confirm"') == 2


@pytest.mark.parametrize(
    ("column", "value"), [("kind", "banish"), ("outcome", "half"), ("argument", "{"), ("argument", "[" * 9000)]
)
def test_an_act_of_a_newer_release_is_a_line_and_no_crash(site: Site, tmp_path: Path, column: str, value: str) -> None:
    send(site, {**FORM, "token": find_tokens(site)[0]})
    with closing(sqlite3.connect(tmp_path / "acts.db")) as database, database:
        database.execute(f"UPDATE acts SET {column} = ?", (value,))
    answer = site.get("/acts", headers=AS_READER)
    assert answer.status_code == 503
    assert "The acts cannot be read: dashboard.acts: act 1 is none that this release knows" in answer.text
