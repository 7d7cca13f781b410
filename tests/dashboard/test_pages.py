# SPDX-License-Identifier: GPL-2.0-or-later
"""What the pages show, to whom, and what they say while the log is away."""

import base64
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.routing import Mount, Route

from hgext.vcsreplicator.dashboard.acts import ActRecord
from hgext.vcsreplicator.dashboard.pages import format_instant, shorten
from hgext.vcsreplicator.dashboard.readers import DashboardUser, Readers
from hgext.vcsreplicator.dashboard.settings import DashboardRole, DashboardSettings
from hgext.vcsreplicator.dashboard.watcher import LogWatcher
from hgext.vcsreplicator.log import ACKS, NOTICES, NOTIFIER, SERVICES
from hgext.vcsreplicator.status.wording import Finding, Severity
from hgext.vcsreplicator.words.records import MirrorHeartbeat, ServiceReport, ServiceTrouble
from testing.services.cache import CHECKOUT
from testing.waiting import eventually
from tests.dashboard.conftest import (
    AS_READER,
    SECRET,
    TOKEN,
    AwayLog,
    Installation,
    Site,
    client,
    fill,
    pages,
    settings,
    watching,
)


def addresses(installation: Installation, site: Site) -> list[str]:
    """An address of every route that the application has; of those of a repository, one for each that there is."""
    found = []
    for route in site.app.routes:
        if isinstance(route, Mount):
            found += [f"{route.path}/style.css", f"{route.path}/live.js", f"{route.path}/nothing"]
        elif isinstance(route, Route) and "{" not in route.path:
            found.append(route.path)
        else:
            for chain in installation.chains.values():
                named = route.path.replace("{repository}", chain.repository).replace("{name}", installation.mirrors[0])
                named = named.replace("{destination}", "hooks")
                found.append(named.replace("{seq:seq}", "3"))
    return [*found, "/nowhere"]


def readable(installation: Installation, site: Site) -> Iterator[str]:
    return (address for address in addresses(installation, site) if address not in ("/pushes/live", "/sign-in"))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer"},
        {"authorization": "Basic ###"},
        {"authorization": "Digest x"},
        {"authorization": f"Bearer {TOKEN}" + "x" * 500},
        {"x-remote-user": "proxied"},
    ],
)
def test_no_address_answers_without_a_token(
    installation: Installation, tmp_path: Path, headers: dict[str, str]
) -> None:
    with pages(installation, settings(tmp_path)) as site:
        for address in addresses(installation, site):
            answer = site.get(address, headers=headers)
            assert answer.status_code == 401, address
            assert "Basic" in answer.headers["www-authenticate"]


def test_a_wrong_token_is_no_guest(site: Site) -> None:
    assert site.get("/").status_code == 200
    for value in ("Bearer wrong", "Basic ###", "Digest x", "x"):
        assert site.get("/", headers={"authorization": value}).status_code == 401


def test_a_guest_can_sign_in(site: Site) -> None:
    assert 'href="/sign-in"' in site.get("/").text
    refused = site.get("/sign-in")
    assert (refused.status_code, "Basic" in refused.headers["www-authenticate"]) == (401, True)
    signed = site.get("/sign-in", headers=AS_READER)
    assert (signed.status_code, signed.headers["location"]) == (303, "/")
    text = site.get("/", headers=AS_READER).text
    assert 'href="/sign-in"' not in text
    assert ">dana<" in text


def test_a_token_opens_as_password_too(installation: Installation, tmp_path: Path) -> None:
    with pages(installation, settings(tmp_path)) as site:
        words = base64.b64encode(f"dana:{TOKEN}".encode()).decode()
        assert SECRET in site.get("/", headers={"authorization": f"Basic {words}"}).text


def test_no_address_changes_anything(installation: Installation, site: Site) -> None:
    for address in addresses(installation, site):
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            expected = (403,) if (method, address) == ("POST", "/acts") else (404, 405)
            assert site.request(method, address, headers=AS_READER).status_code in expected, address


def test_no_page_shows_a_guest_a_private_name(installation: Installation, site: Site) -> None:
    private = installation.chains[SECRET]
    detached = f"/repository/{installation.chains['public/firefox'].repository}/event/4"
    more = (detached, "/repositories?q=payroll", f"/repositories?q={private.repository}")
    assert "payroll" in site.get(detached, headers=AS_READER).text
    for address in [*readable(installation, site), *more]:
        answer = site.get(address)
        text = answer.text
        assert (answer.status_code == 403) == (address in ("/deliveries", "/destination/hooks", "/roster", "/acts")), (
            address
        )
        assert "payroll" not in text.replace('value="payroll"', "").replace("?q=payroll&", ""), address
        assert "dana@example.com" not in text, address
        if private.repository in address and not address.startswith("/repositories"):
            assert site.get(address).status_code == 404
    assert private.repository[:8] in site.get("/repositories").text
    assert "0 of 4" in site.get("/repositories?q=payroll").text


def test_the_order_of_a_list_tells_a_guest_nothing_of_private_names(tmp_path: Path) -> None:
    installation = Installation()
    paths = [f"secret/{number}" for number in range(9)]
    for path in paths:
        installation.push(path)
    with pages(installation, settings(tmp_path, anonymous=DashboardRole.GUEST)) as site:
        rows = site.get("/api/repositories.json").json()["repositories"]
        assert [row["name"] for row in rows] == sorted(installation.chains[path].repository[:8] for path in paths)
        rows = site.get("/api/repositories.json", headers=AS_READER).json()["repositories"]
        assert [row["name"] for row in rows] == paths


def test_a_reader_sees_all_names_and_what_is_wrong(installation: Installation, site: Site) -> None:
    text = site.get("/", headers=AS_READER).text
    assert "status 500 for secret/payroll" in text
    assert re.search(r"public/firefox is detached on beta: locked \(for \d+ s, since 20", text)
    page = f"/repository/{installation.chains['public/firefox'].repository}"
    assert re.search(
        r">locked</strong> since <time>20[^<]+</time> UTC: abort: ", site.get(page, headers=AS_READER).text
    )
    assert re.search(r">locked</strong> since <time>20[^<]+</time> UTC</td>", site.get(page).text), (
        "a guest sees no note"
    )
    assert "1 of 4" in site.get("/repositories?q=payroll", headers=AS_READER).text
    for address in readable(installation, site):
        expected = 404 if address in ("/nowhere", "/static/nothing") else 200
        assert site.get(address, headers=AS_READER).status_code == expected, address


def test_names_are_escaped_and_in_one_line(site: Site) -> None:
    for address in ("/", "/repositories", "/pushes"):
        text = site.get(address).text
        assert "<b>" not in text
        assert "public/&lt;b&gt;&#34;odd&#34; name" in text
    assert "status 500 for secret/payroll \\x1b[31m\\n&lt;i&gt;" in site.get("/", headers=AS_READER).text


def test_a_name_that_is_no_unicode_takes_no_page_from_its_readers(tmp_path: Path) -> None:
    installation = fill()
    now, odd = installation.clock.now(), "\udcff"  # as the log reads the byte FF of a key
    installation.write(ACKS, odd, MirrorHeartbeat(mirror=odd, time=now, positions={}, version="1"))
    trouble = ServiceTrouble(text="half a character: \ud800", since=now - 9, is_urgent=True)
    installation.write(
        SERVICES, f"destination {odd}", ServiceReport(time=now, version="1", count=1, troubles=(trouble,))
    )
    act = ActRecord(at=now, who="olga", reason="r", kind="pause", target="hooks", argument="{}", outcome="done")
    installation.write(NOTIFIER, f"act/{odd}", act)
    with pages(installation, settings(tmp_path)) as site:
        for address in ("/", "/acts", "/api/overview.json"):
            assert site.get(address, headers=AS_READER).status_code == 200, address
        assert "half a character: \\ud800" in site.get("/", headers=AS_READER).text


def test_every_answer_has_the_policy(installation: Installation, site: Site) -> None:
    for address in readable(installation, site):
        headers = site.get(address).headers
        assert headers["content-security-policy"].startswith("default-src 'none'"), address
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"


def test_a_proxy_that_is_trusted_names_the_user(installation: Installation, tmp_path: Path) -> None:
    made = settings(tmp_path, proxy_header="X-Remote-User", trusted_proxies=("10.0.0.7",))
    with pages(installation, made) as site:
        assert SECRET in site.get("/", headers={"X-Remote-User": "proxied"}).text
        assert site.get("/", headers={"X-Remote-User": "stranger"}).status_code == 401
        twice = [("X-Remote-User", "proxied"), ("X-Remote-User", "dana")]
        assert site.get("/", headers=twice).status_code == 401
    made = settings(tmp_path, proxy_header="X-Remote-User", trusted_proxies=("10.0.0.8",))
    with pages(installation, made) as site:
        assert site.get("/", headers={"X-Remote-User": "proxied"}).status_code == 401


@pytest.mark.parametrize(
    ("trusted", "client"),
    [
        ("::0001", "::1"),
        ("2001:DB8::1", "2001:db8::1"),
        ("10.0.0.7", "::ffff:10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
    ],
)
def test_a_trusted_proxy_is_known_by_its_address_however_it_is_written(
    tmp_path: Path, trusted: str, client: str
) -> None:
    made = settings(tmp_path, proxy_header="X-User", trusted_proxies=(trusted,))
    readers = Readers(made, [DashboardUser(name="dana", role=DashboardRole.READER, digest=None)])
    found = readers.find_user([(b"x-user", b"dana")], client)
    assert found is not None
    assert found.name == "dana"
    assert readers.find_user([(b"x-user", b"dana")], "testclient") is None


def test_a_number_that_no_event_has_is_an_address_without_a_page(installation: Installation, site: Site) -> None:
    chain = next(iter(installation.chains.values()))
    for seq in ("9" * 5000, "9" * 19):
        answer = site.get(f"/repository/{chain.repository}/event/{seq}", headers=AS_READER)
        assert answer.status_code == 404


def test_another_name_for_this_machine_is_refused(installation: Installation, tmp_path: Path) -> None:
    with pages(installation, settings(tmp_path, hosts=("status.example",))) as site:
        assert site.get("/", headers={**AS_READER, "host": "evil.example"}).status_code == 400
        assert site.get("/", headers={**AS_READER, "host": "status.example:443"}).status_code == 200


@pytest.mark.parametrize("address", ["fd00::1", "FD00:0:0:0:0:0:0:1"])
def test_a_dashboard_at_an_ipv6_address_answers_browsers(
    installation: Installation, tmp_path: Path, address: str
) -> None:
    with pages(installation, replace(settings(tmp_path), listen=f"[{address}]:8090")) as site:
        assert site.get("/", headers={**AS_READER, "host": "[fd00::1]:8090"}).status_code == 200
        assert site.get("/", headers={**AS_READER, "host": "[fd00::1]"}).status_code == 200
        assert site.get("/", headers={**AS_READER, "host": "[fd00::2]:8090"}).status_code == 400


def test_repositories_are_listed_the_worst_first(site: Site) -> None:
    rows = site.get("/api/repositories.json", headers=AS_READER).json()["repositories"]
    assert [(row["name"], row["condition"]) for row in rows[:3]] == [
        ("public/firefox", "detached"),
        (SECRET, "waiting"),
        ('public/<b>"odd" name', "current"),
    ]
    found = site.get("/api/repositories.json?state=waiting", headers=AS_READER).json()
    assert [row["name"] for row in found["repositories"]] == ["public/firefox", SECRET]


@pytest.mark.parametrize("query", ["page=0", "page=99999999999", "page=²", "state=odd", "page=-1&q=%ff%00"])
def test_an_odd_question_is_answered(site: Site, query: str) -> None:
    assert site.get(f"/repositories?{query}").status_code == 200


def test_all_repositories_that_wait_are_listed_though_one_is_detached_too(site: Site) -> None:
    text = site.get("/repositories?state=waiting", headers=AS_READER).text
    assert "2 of 4" in text
    assert re.findall(r'<th scope="row"><a[^>]*>([^<]+)', text) == ["public/firefox", SECRET]


def test_the_overview_says_how_late_a_mirror_is_and_what_is_held(installation: Installation, site: Site) -> None:
    content = site.get("/api/overview.json", headers=AS_READER).json()
    alpha, beta = content["mirrors"]
    assert (alpha["behind"], alpha["lag"]) == (0, 0)
    assert (beta["behind"], beta["detached"]) == (2, 1)
    assert 70 < beta["lag"] < 80
    assert content["waiting"] == 2
    services = {row["name"]: row for row in content["services"]}
    assert set(services) == {"aggregator", "relay hg.example", "destination hooks"}
    hooks, newest = services["destination hooks"], installation.log.ends(NOTICES)[0] - 1
    assert (hooks["position"], hooks["behind"]) == (newest, 1)
    assert "position" not in services["relay hg.example"]


def test_an_announced_event_has_its_whole_timeline(installation: Installation, site: Site) -> None:
    repository = installation.chains["public/tools"].repository
    text = site.get(f"/repository/{repository}/event/2", headers=AS_READER).text
    for words in (
        "committed on the master",
        "applied on beta",
        "served by alpha",
        "notice written",
        "hooks: passed",
    ):
        assert words in text
    assert text.count("<circle") == 2 + 2 * 2 + 1


def test_an_event_that_waits_shows_what_it_waits_for(installation: Installation, site: Site) -> None:
    repository = installation.chains[SECRET].repository
    text = site.get(f"/repository/{repository}/event/4", headers=AS_READER).text
    assert "beta: not applied (applied 3, serving 3)" in text
    assert "no notice yet" in text
    assert "beta (waiting)" in text


def test_an_event_that_is_not_remembered_is_searched_for(tmp_path: Path) -> None:
    installation = Installation()
    for _ in range(30):
        installation.push("public/busy")
    repository = installation.chains["public/busy"].repository
    with pages(installation, settings(tmp_path)) as site:
        assert "notice written" in site.get(f"/repository/{repository}/event/2", headers=AS_READER).text
        gone = site.get(f"/repository/{repository}/event/31", headers=AS_READER)
        assert gone.status_code == 404
        assert "the newest event is 30" in gone.text


def test_a_timeline_that_lacks_steps_is_not_called_whole(site: Site, installation: Installation) -> None:
    for path, seq, is_whole in (("public/tools", 2, True), (SECRET, 4, False)):
        address = f"/repository/{installation.chains[path].repository}/event/{seq}"
        text = site.get(address, headers=AS_READER).text
        assert ("From the commit to the notice, " in text) == is_whole, path
        assert ("from the first to the last step so far" in text) != is_whole, path


def test_a_finding_shows_code_as_code_and_links_to_other_pages(site: Site, installation: Installation) -> None:
    finding = Finding(level=Severity.WARNING, text="<b>\x1b: run `hg <x>`; see: hg log", command="hg log")
    assert shorten(finding) == "&lt;b&gt;\\x1b: run <code>hg &lt;x&gt;</code>"
    repository = f"/repository/{installation.chains['public/firefox'].repository}"
    texts = [site.get(address, headers=AS_READER).text for address in ("/mirror/beta", repository)]
    assert [text.count('Mirror <a href="/mirror/beta">') for text in texts] == [0, 1]
    assert [text.count(f'Repository <a href="{repository}">') for text in texts] == [1, 0]


def test_a_dashboard_that_is_still_reading_calls_no_log_unavailable(tmp_path: Path) -> None:
    installation = fill()
    site = client(installation, LogWatcher(installation.log, installation.sources.expected), settings(tmp_path))
    answer = site.get("/", headers=AS_READER)
    assert (answer.status_code, "is reading the log" in answer.text) == (503, True)
    assert "unavailable" not in answer.text


def test_an_installation_without_repositories_does_not_say_that_none_matches(tmp_path: Path) -> None:
    with pages(Installation(()), settings(tmp_path)) as site:
        assert "There is no repository yet." in site.get("/repositories", headers=AS_READER).text
        assert "see <code>vcsreplicator roster add</code>" in site.get("/", headers=AS_READER).text


def test_pages_say_since_when_the_log_is_away_and_show_what_was_known(tmp_path: Path) -> None:
    installation = fill()
    log = AwayLog(installation)
    made = settings(tmp_path, anonymous=DashboardRole.GUEST)
    log.is_away = True
    with watching(installation.sources, log) as watcher:  # type: ignore[arg-type]
        site = client(installation, watcher, made)
        eventually(lambda: "kafka" in (watcher.trouble or ""))
        for address in ("/", "/repositories", f"/repository/{'0' * 32}", f"/repository/{'0' * 32}/event/1", "/pushes"):
            answer = site.get(address, headers=AS_READER)
            assert answer.status_code == 503, address
            assert "The log has been unavailable since <time>2" in answer.text
        assert site.get("/api/overview.json").status_code == 503
        log.is_away = False
        eventually(lambda: watcher.trouble is None)
        assert "cannot be read" not in site.get("/").text
        log.is_away = True
        eventually(lambda: watcher.trouble is not None)
        since, watcher.trouble = watcher.since, "as before"
        eventually(lambda: watcher.trouble != "as before")
        assert watcher.since == since
        text = site.get("/", headers=AS_READER).text
        assert "kafka.internal" in text
        assert "public/firefox" in text
        assert "kafka.internal" not in site.get("/").text
        assert "The log has been unavailable since <time>2" in site.get("/").text


def test_while_the_log_is_away_a_page_says_of_when_its_view_is(tmp_path: Path) -> None:
    installation = fill()
    log = AwayLog(installation)
    with watching(installation.sources, log) as watcher:  # type: ignore[arg-type]
        site = client(installation, watcher, settings(tmp_path, anonymous=DashboardRole.READER))
        seen = eventually(lambda: watcher.view).now
        installation.clock.advance(3 * 3600)  # in which no page is read, so no view is made
        log.is_away = True
        eventually(lambda: watcher.trouble is not None)
        notice = site.get("/").text.partition('role="alert">')[2].partition("</p>")[0]
        assert f"What this page shows of the log is as of <time>{format_instant(seen)}</time> UTC" in notice


@pytest.mark.parametrize(
    ("members", "key"),
    [
        ({}, "users"),
        ({"users": "relative"}, "users"),
        ({"listen": "0.0.0.0:80", "anonymous": DashboardRole.READER}, "anonymous"),
        ({"anonymous": DashboardRole.GUEST, "proxy_header": "X-User"}, "proxy-header"),
        ({"anonymous": DashboardRole.GUEST, "proxy_header": "X-User", "trusted_proxies": ("::1",)}, "users"),
        ({"anonymous": DashboardRole.GUEST, "hosts": ("*",)}, "hosts"),
        ({"users": "/users", "proxy_header": "X-User", "trusted_proxies": ("10.0.0.0/8",)}, "trusted-proxies"),
        ({"users": "/users", "proxy_header": "X-User", "trusted_proxies": ("::1", "localhost")}, "trusted-proxies"),
        ({"users": "/users", "proxy_header": "X-User", "trusted_proxies": ("",)}, "trusted-proxies"),
        ({"users": "/users", "proxy_header": "X Remote: Üser", "trusted_proxies": ("::1",)}, "proxy-header"),
        ({"users": "/users", "proxy_header": "", "trusted_proxies": ("::1",)}, "proxy-header"),
        ({"users": "/users", "proxy_header": "Authorization", "trusted_proxies": ("::1",)}, "proxy-header"),
    ],
)
def test_settings_that_let_in_anybody_are_refused(members: dict[str, object], key: str) -> None:
    with pytest.raises(ValueError, match=f"^{key}: "):
        DashboardSettings(**{"listen": "127.0.0.1:1", **members})  # type: ignore[arg-type]


def test_each_time_on_a_page_names_its_zone() -> None:
    """In its own cell: a phone shows no headings."""
    bare = []
    for file in sorted((CHECKOUT / "hgext/vcsreplicator/dashboard/templates").glob("*.html")):
        for line in file.read_text().splitlines():
            for found in re.finditer(r"\| instant[^}]*}}(</time>)?", line):
                cell = line[: found.start()].rpartition("<td")[2]
                if not line[found.end() :].startswith(" UTC") and "(UTC)" not in cell:
                    bare.append(f"{file.name}: {line[found.start() - 40 : found.end()]}")
    assert bare == []


def test_a_mirror_that_is_deactivated_for_nothing_does_not_speak_of_it(site: Site) -> None:
    text = site.get("/mirror/beta", headers=AS_READER).text
    assert "It carries all repositories.</p>" in text
