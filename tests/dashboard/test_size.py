# SPDX-License-Identifier: GPL-2.0-or-later
"""Pages of an installation of 10,000 repositories on 10 mirrors, made from built levels: bounded, and right at both ends."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from hgext.vcsreplicator.dashboard.recent import RecentEvents
from hgext.vcsreplicator.dashboard.settings import DashboardRole
from hgext.vcsreplicator.dashboard.view import View, make_view
from hgext.vcsreplicator.status.follower import Follower
from hgext.vcsreplicator.status.services import Expectations
from tests.dashboard.conftest import AS_READER, Installation, Site, client, settings

REPOSITORIES = 10_000


@pytest.fixture(scope="module")
def view() -> View:
    """Each tenth repository waits for its notice; the mirror m3 lacks an event of each fiftieth."""
    installation = Installation(tuple(f"m{number}" for number in range(10)))
    chain = installation.push("public/one")
    follower, events = Follower(installation.log), RecentEvents(installation.log)
    events.read_on(0.0)
    picture = follower.update()
    model, ack = picture.states.pop(chain.repository), chain.ack("m0", 1)
    picture.acks.clear()
    for number in range(REPOSITORIES):
        name, is_late = f"{number:032x}", number % 10 == 0
        path = f"{'public' if number % 2 else 'secret'}/repo{number:05}"
        noticed = 4 if is_late else 5
        picture.states[name] = replace(model, repository=name, path=path, seq=5, released=noticed, noticed=noticed)
        for mirror in installation.mirrors:
            applied = 4 if mirror == "m3" and number % 50 == 0 else 5
            picture.acks[mirror, name] = replace(ack, mirror=mirror, repository=name, applied=applied, serving=noticed)
    return make_view(picture, events, installation.clock.now(), Expectations(destinations=("hooks",)))


@pytest.fixture(scope="module")
def site(view: View, tmp_path_factory: pytest.TempPathFactory) -> Site:
    watcher = SimpleNamespace(view=view, fetch_view=lambda: view, trouble=None, since=0.0, announced=())
    made = settings(tmp_path_factory.mktemp("size"), anonymous=DashboardRole.GUEST)
    return client(Installation(), watcher, made)  # type: ignore[arg-type]


def test_no_page_grows_with_the_number_of_repositories(site: Site) -> None:
    for headers in (AS_READER, {}):
        for address in (
            "/",
            "/repositories",
            "/repositories?q=repo",
            f"/repository/{1:032x}",
            "/pushes",
            "/mirror/m3",
            "/roster",
        ):
            if address == "/roster" and not headers:
                continue
            answer = site.get(address, headers=headers)
            assert answer.status_code == 200
            assert len(answer.content) < 50_000, address


def test_every_repository_is_on_one_page_of_the_list(site: Site) -> None:
    first = site.get("/repositories", headers=AS_READER).text
    assert "Page 1 of 400" in first
    assert "secret/repo00000" in first
    last = site.get("/repositories?page=400", headers=AS_READER).text
    assert "secret/repo09998" in last
    assert 'rel="next"' not in last
    assert site.get("/repositories?page=401", headers=AS_READER).status_code == 200


def test_the_overview_counts_all_and_names_the_late_mirror(site: Site, view: View) -> None:
    [late] = [row for row in view.mirrors if row.behind]
    assert (late.name, late.behind) == ("m3", REPOSITORIES // 50)
    assert view.waiting == REPOSITORIES // 10
    text = site.get("/", headers=AS_READER).text
    assert text.count("the aggregator</td>") + text.count('"Waits for"><a href="/mirror/m3">') == 10


def test_a_search_of_a_guest_finds_public_names_only(site: Site) -> None:
    assert "1 of 10000" in site.get("/repositories?q=repo00001").text
    assert "0 of 10000" in site.get("/repositories?q=repo00002").text


def test_the_levels_of_one_repository_are_of_all_its_mirrors(site: Site) -> None:
    text = site.get(f"/repository/{50:032x}", headers=AS_READER).text
    assert [f">m{number}</a></th>" in text for number in range(10)] == [True] * 10
    assert "because of m3" in text
