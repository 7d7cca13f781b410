# SPDX-License-Identifier: GPL-2.0-or-later
"""The overview leads to the answer: what is wrong, what to type, where to look, and the page of each mirror."""

import html
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from hgext.vcsreplicator.dashboard.settings import DashboardRole, DashboardSettings
from hgext.vcsreplicator.log import ACKS, NOTICES, ROSTER, SERVICES
from hgext.vcsreplicator.words.records import MirrorHeartbeat, Reason, RoundProgress, ServiceReport
from hgext.vcsreplicator.words.roster import KEY, Mirror, MirrorState, Roster
from hgext.vcsreplicator.words.rules import Rules
from notifier.destinations.state import Kind, StateDatabase
from testing.waiting import eventually
from tests.dashboard.conftest import (
    AS_READER,
    SECRET,
    AwayLog,
    Installation,
    Site,
    client,
    fill,
    fill_notifier,
    pages,
    settings,
    watching,
)

RUNBOOK = "https://docs.example/runbook.html"


@pytest.fixture(scope="module")
def late() -> Installation:
    """Beta is silent, alpha cannot write, and one repository waits; the trouble lasts."""
    installation = fill()
    installation.clock.advance(200)
    installation.mirrors = ()
    installation.beat()
    now = installation.clock.now()
    beat = MirrorHeartbeat(
        mirror="alpha",
        time=now,
        positions={},
        version="7.1",
        instance="x@alpha.example",
        trouble=f"no room for {SECRET}",
        trouble_since=now - 9,
    )
    installation.write(ACKS, "alpha", beat)
    installation.mirrors = ("alpha", "beta")
    return installation


@pytest.fixture(scope="module")
def site(late: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("overview")
    made = settings(folder, anonymous=DashboardRole.GUEST, name="hg <example>", runbook=RUNBOOK)
    with pages(late, made) as site:
        yield site


def test_each_page_has_the_name_and_its_tab_the_state(site: Site, tmp_path: Path) -> None:
    for address in ("/", "/repositories", "/roster"):
        text = site.get(address, headers=AS_READER).text
        assert re.search(r"<title>critical: \w+ · hg &lt;example&gt;</title>", text), address
        assert 'href="/static/icon-critical.svg"' in text
        assert '<p class="site">hg &lt;example&gt;</p>' in text
    assert "<title>Not found · hg" in site.get("/nowhere", headers=AS_READER).text
    installation = Installation()
    with pages(replace_trouble(installation), settings(tmp_path)) as well:
        text = well.get("/", headers=AS_READER).text
        assert "<title>Overview · vcsreplicator</title>" in text
        assert 'href="/static/icon-ok.svg"' in text
    for level in ("ok", "warning", "critical", "unknown"):
        assert site.get(f"/static/icon-{level}.svg").headers["content-type"] == "image/svg+xml"


def replace_trouble(installation: Installation) -> Installation:
    """Let the destination report no trouble, and read all."""
    report = ServiceReport(time=installation.clock.now(), version="1")
    installation.write(SERVICES, "destination hooks", report)
    installation.log.acknowledge("notifier-hooks", NOTICES, {0: 0})
    return installation


def test_a_log_that_is_away_is_critical_in_the_tab_too(tmp_path: Path) -> None:
    installation = Installation()
    log = AwayLog(installation)
    with watching(installation.sources, log) as watcher:  # type: ignore[arg-type]
        site = client(installation, watcher, settings(tmp_path))
        eventually(lambda: watcher.view)
        log.is_away = True
        eventually(lambda: watcher.trouble)
        assert "<title>critical: Repositories" in site.get("/repositories", headers=AS_READER).text


def test_a_finding_is_a_card_with_one_whole_command_and_links(late: Installation, site: Site) -> None:
    text = site.get("/", headers=AS_READER).text
    cards = [html.unescape(card) for card in re.findall(r"<li class=.notice.*?</li>", text, re.DOTALL)]
    [silent] = [card for card in cards if "mirror beta is silent" in card]
    assert silent.count("systemctl start vcsreplicator-mirror@beta") == 1
    assert '<code class="command">systemctl start vcsreplicator-mirror@beta</code>' in silent
    assert "<code>vcsreplicator roster deactivate beta --yes</code>" in silent
    assert f'href="{RUNBOOK}#vcsreplicatormirrorsilent"' in silent
    assert 'href="/mirror/beta"' in silent
    [detached] = [card for card in cards if "public/firefox is detached" in card]
    assert detached.count("vcsreplicator heal beta public/firefox") == 1
    assert f'href="{RUNBOOK}#reasons-of-detached-repositories"' in detached
    assert f'href="/repository/{late.chains["public/firefox"].repository}"' in detached
    assert all(re.search(r"since \d{4}-", card) for card in cards)


def test_a_silent_mirror_is_no_serving_one(site: Site) -> None:
    rows = re.findall(r"<tr[^>]*>\s*<th scope=\"row\"><a href=\"/mirror/.*?</tr>", site.get("/").text, re.DOTALL)
    [alpha] = [row for row in rows if "/mirror/alpha" in row]
    [beta] = [row for row in rows if "/mirror/beta" in row]
    assert 'class="state-critical"' in beta
    assert '<strong class="critical">silent</strong>' in beta
    assert '<strong class="critical">cannot write</strong>' in alpha


def test_a_silent_service_is_marked_and_one_that_reports_is_not(tmp_path: Path) -> None:
    installation = fill()
    with pages(installation, settings(tmp_path)) as site:
        assert "silent</strong>, " not in site.get("/", headers=AS_READER).text
        installation.clock.advance(100)
        installation.write(SERVICES, "relay hg.example", ServiceReport(time=installation.clock.now(), version="1"))

        def silent() -> list[str]:
            rows = site.get("/", headers=AS_READER).text.partition('<h2 id="services">')[2].split("<tr")
            return [
                name
                for name in ("aggregator", "relay", "hooks")
                for row in rows
                if "silent</strong>, " in row and name in row
            ]

        eventually(lambda: silent() == ["aggregator", "hooks"], every=0.3)


def test_findings_and_the_newest_pushes_come_before_the_tables(site: Site) -> None:
    text = site.get("/", headers=AS_READER).text
    places = [text.index(f'<h2 id="{name}">') for name in ("findings", "newest", "mirrors", "waiting", "services")]
    assert places == sorted(places)


def test_columns_sort_by_a_parameter_and_say_so(site: Site) -> None:
    def names(address: str) -> list[str]:
        text = site.get(address, headers=AS_READER).text.partition('<h2 id="mirrors">')[2]
        return re.findall(r'<a href="/mirror/\w+">(\w+)</a></th>', text)

    assert names("/") == names("/?sort=nonsense") == names("/?sort=mirror") == ["alpha", "beta"]
    assert names("/?sort=behind") == names("/?sort=seen") == ["beta", "alpha"]
    text = site.get("/repositories?sort=event&state=", headers=AS_READER).text
    assert '<th scope="col" class="number" aria-sort="descending">' in text
    shown = re.findall(r'<th scope="row"><a href="/repository/\w+">([^<]+)', text)
    assert shown[:2] == ["public/firefox", SECRET]
    by_name = site.get("/repositories?sort=repository").text
    guests = re.findall(r'<th scope="row"><(?:a|span)[^>]*>([^<]+)', by_name)
    assert [html.unescape(name) for name in guests] == sorted(html.unescape(name) for name in guests)


def test_a_mirror_has_a_page_with_all_that_is_known(late: Installation, site: Site) -> None:
    text = site.get("/mirror/beta", headers=AS_READER).text
    for words in (
        "<h1>Mirror beta</h1>",
        "mirror beta is silent",
        "What it lacks",
        SECRET,
        "all repositories",
        "locked</strong>: abort",
    ):
        assert words in text
    alpha = site.get("/mirror/alpha", headers=AS_READER).text
    assert "Release 7.1 on alpha.example" in alpha
    assert "It cannot write: no room for secret/payroll" in alpha
    for name in ("alpha", "beta"):
        assert "payroll" not in site.get(f"/mirror/{name}").text
    assert site.get("/mirror/nobody", headers=AS_READER).status_code == 404


def test_a_mirror_that_is_not_expected_to_run_is_not_called_behind(tmp_path: Path) -> None:
    """Though it lacks events, has a repository detached, and could not write before it was stopped."""
    installation = fill()
    off = Mirror(
        name="beta", state=MirrorState.INACTIVE, rules=Rules(include=("path:a", "path:b"), exclude=("path:c",))
    )
    beat = MirrorHeartbeat(mirror="beta", time=installation.clock.now(), positions={}, version="1", trouble="no room")
    installation.write(ACKS, "beta", beat)
    installation.write(ROSTER, KEY, Roster(mirrors=(Mirror(name="alpha", state=MirrorState.ACTIVE), off)))
    installation.clock.advance(200)
    installation.mirrors = ("alpha",)
    installation.beat()
    with pages(installation, settings(tmp_path)) as site:
        text = site.get("/mirror/beta", headers=AS_READER).text
    assert "<dt>State</dt><dd>not expected to run</dd>" in text
    shown = " ".join(re.sub(r"<[^>]+>", "", text).split())
    assert "Release 1. It cannot write: no room." in shown
    assert "It carries path:a, path:b, but not path:c." in shown


def test_a_mirrors_page_says_how_many_findings_it_leaves_out(tmp_path: Path) -> None:
    installation = fill()
    for number in range(11):
        ack = installation.push(f"public/{number}").ack("beta", 1)
        reason = list(Reason)[number]
        installation.write(
            ACKS, f"beta/{ack.repository}", replace(ack, detached=reason, detached_since=1_700_000_000.0)
        )
    with pages(installation, settings(tmp_path)) as site:
        text = site.get("/mirror/beta", headers=AS_READER).text
    assert text.count('<li class="notice') == 10
    assert re.search("The first 10 of 1[23]; the ", text)


def test_a_repository_has_what_an_operator_should_do_about_it(tmp_path: Path) -> None:
    installation = fill()
    firefox, tools = (installation.chains[path] for path in ("public/firefox", "public/tools"))
    installation.state(tools, fork="f" * 32, forked_at=installation.clock.now())
    with pages(installation, settings(tmp_path, anonymous=DashboardRole.GUEST, runbook=RUNBOOK)) as site:
        address = f"/repository/{firefox.repository}"
        assert "vcsreplicator heal beta public/firefox</code>" in site.get(address, headers=AS_READER).text
        assert "heal" not in site.get(address).text
        forked = site.get(f"/repository/{tools.repository}").text
        to_reader = site.get(f"/repository/{tools.repository}", headers=AS_READER).text
        assert '<strong class="critical">forked</strong>' in site.get("/repositories").text
    assert "run <code>hg replicateadopt</code> where the history is right" in forked
    assert f'href="{RUNBOOK}#vcsreplicatorrepositoryforked"' in forked
    assert to_reader.count("hg replicateadopt") == 1, "its finding says it"


def test_an_address_without_a_page_gets_a_sentence(site: Site) -> None:
    answer = site.get("/nowhere")
    assert answer.status_code == 404
    assert "<p>There is no such page.</p>" in answer.text


def test_a_mirror_that_verify_compares_shows_since_when(tmp_path: Path) -> None:
    installation = fill()
    progress = RoundProgress(done=3, total=7, oldest=installation.clock.now() - 7200.0, failing=1)
    report = ServiceReport(time=installation.clock.now(), version="1", progress=progress)
    installation.write(SERVICES, "verify alpha", report)
    with pages(installation, settings(tmp_path)) as site:
        for address in ("/", "/mirror/alpha"):
            text = site.get(address, headers=AS_READER).text
            assert "2 h ago, 3 of 7 in this round, 1 not compared" in text, address
        assert "<dt>Last verified</dt><dd>never</dd>" in site.get("/mirror/beta", headers=AS_READER).text
        assert site.get("/", headers=AS_READER).text.count('<td data-label="Last verified">never</td>') == 1


@pytest.mark.parametrize(
    ("members", "key"), [({"name": ""}, "name"), ({"name": "a\nb"}, "name"), ({"runbook": "javascript:1"}, "runbook")]
)
def test_a_name_and_an_address_that_cannot_be_shown_are_refused(members: dict[str, str], key: str) -> None:
    with pytest.raises(ValueError, match=f"^{key}: "):
        DashboardSettings(listen="127.0.0.1:1", anonymous=DashboardRole.GUEST, **members)  # type: ignore[arg-type]
    assert replace(DashboardSettings(listen="127.0.0.1:1", anonymous=DashboardRole.GUEST), runbook=RUNBOOK)


def test_a_destination_has_a_page_with_its_attempts_and_answers(tmp_path: Path) -> None:
    installation = fill()
    with pages(installation, settings(tmp_path)) as site:
        text = site.get("/destination/hooks", headers=AS_READER).text
        for words in (
            "<h1>Destination hooks</h1>",
            "<dd>72 s</dd>",
            "subscription ci is failing",
            "no section [notifier]",
        ):
            assert words in text
        assert 'href="/destination/hooks"' in site.get("/", headers=AS_READER).text
        installation.notifier = fill_notifier(tmp_path)
    with closing(StateDatabase(installation.notifier.state)) as state:
        for _ in range(20):
            state.requests.ask("hooks", Kind.PAUSE, {}, who="dana", now=1_700_000_000.0)
    installation.write(SERVICES, "destination new", ServiceReport(time=installation.clock.now(), version="1"))
    with pages(installation, settings(tmp_path)) as site:
        text = site.get("/destination/hooks?state=exhausted", headers=AS_READER).text
        assert "Webhooks of hooks" in text
        assert "status 500" in text
        assert "archive" not in text
        failing = site.get("/destination/pulse-v2", headers=AS_READER).text
        assert "connection refused" in failing
        assert "Webhooks" not in failing
        assert "olga (dashboard act 3)" in failing
        assert "<dt>Notices behind</dt><dd>not known</dd>" in site.get("/destination/new", headers=AS_READER).text
        assert site.get("/destination/nothing", headers=AS_READER).status_code == 404
