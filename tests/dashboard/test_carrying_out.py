# SPDX-License-Identifier: GPL-2.0-or-later
"""Acts against a notifier and an aggregator that run: they do what the verbs do, and say who asked."""

import contextlib
import functools
import html
import os
import re
import signal
import subprocess
import sys
import threading
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode

import pytest

from hgext.vcsreplicator.aggregator.loop import run as run_aggregator
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.cli import dashboard as verb
from hgext.vcsreplicator.config import Config, load
from hgext.vcsreplicator.dashboard.acts import ActJournal, ActOutcome, read_act
from hgext.vcsreplicator.dashboard.application import make_application
from hgext.vcsreplicator.dashboard.deliveries import list_destinations
from hgext.vcsreplicator.dashboard.readers import Readers, read_users
from hgext.vcsreplicator.dashboard.sources import Sources
from hgext.vcsreplicator.demo.ports import free_port
from hgext.vcsreplicator.log import ROSTER, Log, NewRecord
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.status.services import Expectations
from hgext.vcsreplicator.words.errors import BadConfig, Unavailable
from hgext.vcsreplicator.words.roster import KEY, Mirror, MirrorState, Roster
from hgext.vcsreplicator.words.shape import to_json
from notifier.clients.database import is_there
from notifier.destinations.state import Kind, StateDatabase
from notifier.publishing.settings import read as read_notifier
from testing.builders.notifier.endpoint import Endpoint, Reply
from testing.builders.notifier.notices import publish_pushes, with_topics
from testing.builders.notifier.notifying import FILE, SUBSCRIPTION, Notifier, Scripted
from testing.services.cache import CHECKOUT
from testing.waiting import eventually
from tests.dashboard.conftest import AS_OPERATOR, AS_READER, AwayLog, Installation, Site, settings, users_file, watching
from tests.dashboard.test_acts import send

pytestmark = pytest.mark.processes

DASHBOARD = """
[dashboard]
listen = "127.0.0.1:{port}"
users = "{folder}/users"
acts = "{folder}/acts.db"
"""


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint(lambda request: Reply(status=500)) as endpoint:
        yield endpoint


@pytest.fixture
def config(tmp_path: Path, endpoint: Endpoint) -> Config:
    file = tmp_path / "services.toml"
    users_file(tmp_path)
    file.write_text((FILE + SUBSCRIPTION + DASHBOARD).format(folder=tmp_path, url=endpoint.url, port=free_port()))
    file.chmod(0o640)
    return load(str(file))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with open_log(f"sqlite://{tmp_path}/log.db", creates=True) as log:
        yield with_topics(log)


@pytest.fixture
def notifier(config: Config, log: Log, tmp_path: Path, attentive: None) -> Iterator[Notifier]:
    """A notifier whose destination `lines` fails on the seventh push, and whose webhook answers 500."""
    running = Notifier(log, tmp_path)
    hooks = read_notifier(config.tables, config.file).destinations["hooks"]
    running.start(
        lines=Scripted(answer=lambda message: Unavailable("no") if message.sequence == 7 else None), hooks=hooks
    )
    yield running
    running.stop()
    running.state.close()


@pytest.fixture
def site(config: Config, log: Log, tmp_path: Path) -> Iterator[Site]:
    """The pages as the verb makes them."""
    sources = Sources(
        log=log,
        url=config.log,
        expected=Expectations(destinations=("lines", "hooks")),
        is_public=lambda path: True,
        describe_delivery=lambda name, event, is_passed: "",
        notifier=read_notifier(config.tables, config.file),
        carry_out=functools.partial(verb.carry_out, config, log),
    )
    made = settings(tmp_path)
    with watching(sources) as watcher:
        eventually(lambda: watcher.view is not None)
        readers, journal = Readers(made, read_users(str(made.users))), ActJournal(str(made.acts), log)
        yield Site(make_application(sources, watcher, readers, journal, made))


def act(site: Site, kind: str, target: str, **fields: str) -> str:
    """Send the form of this act as its page has it; return the outcome that the page of acts shows."""
    address = "/roster" if kind.endswith("activate") else "/deliveries"
    text = site.get(address, headers=AS_OPERATOR).text
    [token] = {
        match
        for form in re.findall(r"<form method=\"post\".*?</form>", text, re.DOTALL)
        if f'name="kind" value="{kind}"' in form and f'name="target" value="{target}"' in form
        for match in re.findall(r'name="token" value="([^"]+)"', form)[:1]
    }
    filled = {"kind": kind, "target": target, "reason": f"why {kind}", "confirm": "yes", "token": token, **fields}
    answer = send(site, filled)
    assert answer.status_code == 303, answer.text
    number = answer.headers["location"].removeprefix("/acts#act-")
    page = site.get("/acts", headers=AS_READER).text
    [row] = re.findall(rf'<tr id="act-{number}">(.*?)</tr>', page, re.DOTALL)
    assert f"why {kind}" in row
    return html.unescape(" ".join(re.sub(r"<[^>]+>", "", row.rpartition('data-label="Outcome">')[2]).split()))


def test_pause_and_resume_are_requests_to_the_notifier_that_name_the_act(site: Site, notifier: Notifier) -> None:
    assert act(site, "pause", "lines") == "done: paused"
    assert "after resume" in eventually_page(site, '<strong class="warning">paused')
    assert act(site, "resume", "lines") == "done: resumed"
    requests = notifier.state.requests.list_newest(5)
    resumed, paused = (f"olga (dashboard act {number})" for number in list_numbers(site))
    assert [(each.kind, each.who) for each in requests] == [(Kind.RESUME, resumed), (Kind.PAUSE, paused)]
    assert resumed in site.get("/deliveries", headers=AS_READER).text


def list_numbers(site: Site) -> list[str]:
    """The numbers of the acts that the page shows, the newest first."""
    return re.findall(r'<tr id="act-(\d+)">', site.get("/acts", headers=AS_READER).text)


def eventually_page(site: Site, words: str) -> str:
    """The page of deliveries once it has these words."""

    def read() -> str:
        text = site.get("/deliveries", headers=AS_OPERATOR).text
        return text if words in text else ""

    return eventually(read)


def test_skip_gives_up_the_message_that_fails(site: Site, notifier: Notifier, log: Log) -> None:
    publish_pushes(log, "x", 6, 7)
    eventually_page(site, '<strong class="warning">failing')
    assert "within 4 s" in site.get("/deliveries", headers=AS_READER).text
    assert act(site, "skip", "lines").startswith("done: skipped ")
    notifier.settled("lines")
    assert f"skipped by olga (dashboard act {list_numbers(site)[0]})" in notifier.errors()[0].reason
    assert act(site, "skip", "lines").startswith("refused: lines: nothing skipped: no message that failed waits")


def test_a_replay_sends_again_what_was_said(site: Site, notifier: Notifier, log: Log) -> None:
    publish_pushes(log, "x", 1, 3)
    notifier.settled("lines")
    assert act(site, "replay", "lines", repository="x", since="2") == "done: sent 2 messages again"
    for since in ("yesterday", "²"):
        assert act(site, "replay", "lines", repository="x", since=since).startswith(
            "refused: Invalid value: expected a time"
        )
    nothing = act(site, "replay", "lines", repository="y", since="2016-04-18T10:24")
    assert nothing.startswith("refused: lines: nothing sent: the log has no message for it about y")


def test_a_delivery_is_listed_with_its_attempts_and_sent_again(
    site: Site, notifier: Notifier, log: Log, endpoint: Endpoint
) -> None:
    publish_pushes(log, "x", 1, 1)
    text = eventually_page(site, "exhausted <time>")
    assert "status 500" in text
    assert "exhausted 1" in text
    endpoint.reply = lambda request: Reply()
    assert act(site, "redeliver", "hooks", delivery="1") == "done: 1 queued again"
    assert "delivered 1" in eventually_page(site, "delivered <time>")
    assert "No delivery is queued" in site.get("/deliveries?state=queued", headers=AS_READER).text
    for wrong in ("2", "0", "x", "²", "9" * 30):
        assert act(site, "redeliver", "hooks", delivery=wrong).startswith(f"refused: there is no delivery {wrong}")


def test_an_unknown_destination_is_refused(config: Config, log: Log, notifier: Notifier) -> None:
    fields = {"kind": "pause", "target": "nowhere", "reason": "x"}
    outcome, text = verb.carry_out(config, log, read_act(fields, who="olga", at=1.0), 1)
    assert (outcome, "no destination 'nowhere'" in text) == (ActOutcome.REFUSED, True)
    fields = {"kind": "redeliver", "target": "lines", "reason": "x", "delivery": "1"}
    outcome, text = verb.carry_out(config, log, read_act(fields, who="olga", at=1.0), 1)
    assert (outcome, "has no destination of type webhook" in text) == (ActOutcome.REFUSED, True)


def test_where_the_notifier_is_not_the_page_says_so_and_nothing_is_asked(
    site: Site, config: Config, log: Log, tmp_path: Path
) -> None:
    before = {file.name for file in tmp_path.iterdir()}
    assert "databases are not on this machine" in site.get("/deliveries", headers=AS_OPERATOR).text
    for kind in ("pause", "redeliver"):
        fields = {"kind": kind, "target": "hooks", "reason": "x", "delivery": "1"}
        outcome, text = verb.carry_out(config, log, read_act(fields, who="olga", at=1.0), 1)
        assert (outcome, "not on this machine" in text) == (ActOutcome.REFUSED, True)
    assert {file.name for file in tmp_path.iterdir()} == before


def test_databases_that_the_dashboard_may_not_see_are_named(
    site: Site, config: Config, log: Log, tmp_path: Path
) -> None:
    """A name that is too long stands for a folder without permission, which root does not know."""
    name = "n" * 300
    tables = {**config.tables, "notifier": {**config.tables["notifier"], "state": str(tmp_path / name)}}
    hidden = read_notifier(tables, config.file)
    assert is_there(hidden.state)
    with pytest.raises(BadConfig, match=r"notifier\.state: .* cannot be used"):
        list_destinations(hidden, 0.0)
    fields = {"kind": "pause", "target": "lines", "reason": "x"}
    found = Config(file=config.file, tables=tables)
    outcome, text = verb.carry_out(found, log, read_act(fields, who="olga", at=1.0), 1)
    assert (outcome, "cannot be used" in text) == (ActOutcome.REFUSED, True)


def test_an_act_whose_answer_cannot_be_read_is_unknown(config: Config) -> None:
    installation = Installation()
    append = installation.log.append

    def append_with_damage(records: list[NewRecord]) -> object:
        return append([*records, NewRecord(topic=ROSTER, key=KEY, value=b"damaged")])

    installation.log.append = append_with_damage  # type: ignore[method-assign, assignment]
    act = read_act({"kind": "activate", "target": "alpha", "reason": "x"}, who="olga", at=1.0)
    outcome, text = verb.carry_out(config, installation.log, act, 1)
    assert (outcome, "not JSON" in text) == (ActOutcome.UNKNOWN, True)


def test_a_page_makes_no_database(site: Site, tmp_path: Path) -> None:
    StateDatabase(str(tmp_path / "notifier.db")).close()
    text = site.get("/deliveries", headers=AS_READER).text
    assert text.count("never ran") == 2
    assert "Webhooks of" not in text
    assert not (tmp_path / "deliveries.db").exists()


def test_a_damaged_database_is_named_on_the_page(site: Site, tmp_path: Path) -> None:
    (tmp_path / "notifier.db").mkdir()
    assert "databases cannot be read: notifier.state" in site.get("/deliveries", headers=AS_READER).text


@contextlib.contextmanager
def aggregating(log: Log) -> Iterator[None]:
    stop, ready = threading.Event(), threading.Event()
    thread = threading.Thread(
        target=lambda: run_aggregator(AggregatorSettings(beat=0.1), log, stop=stop, ready=ready.set)
    )
    thread.start()
    try:
        assert ready.wait(60)
        yield
    finally:
        stop.set()
        thread.join(60)


def test_the_roster_is_changed_by_the_aggregator_which_keeps_who_and_why(site: Site, log: Log) -> None:
    alpha = Mirror(name="alpha", state=MirrorState.ACTIVE)
    log.append([NewRecord(topic=ROSTER, key=KEY, value=to_json(Roster(version=7, mirrors=(alpha,))))])
    eventually(lambda: "alpha" in site.get("/roster", headers=AS_OPERATOR).text)
    with aggregating(log):
        assert act(site, "deactivate", "alpha") == "done: roster version 8"
        eventually(lambda: "Activate alpha" in site.get("/roster", headers=AS_OPERATOR).text)
        assert act(site, "activate", "alpha") == "done: roster version 9"
        eventually(lambda: "version 9" in site.get("/roster", headers=AS_READER).text)
        eventually(lambda: "Deactivate alpha" in site.get("/roster", headers=AS_OPERATOR).text)
        refused = act(site, "deactivate", "alpha", repository="x")
        assert refused == "refused: repository 'x': expected an id of 32 hexadecimal digits"
    text = site.get("/roster", headers=AS_READER).text
    assert text.count("olga (dashboard act ") >= 2
    assert "why deactivate" in text


def test_an_act_that_no_service_answers_is_asked(
    config: Config, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "PATIENCE", 0.05)
    StateDatabase(str(tmp_path / "notifier.db")).close()
    for fields in ({"kind": "pause", "target": "lines"}, {"kind": "activate", "target": "alpha"}):
        outcome, text = verb.carry_out(config, log, read_act({**fields, "reason": "x"}, who="olga", at=1.0), 1)
        assert (outcome, "is recorded and will be" in text) == (ActOutcome.ASKED, True)


def test_an_act_that_a_failure_of_the_log_interrupts_is_unknown(config: Config) -> None:
    log = AwayLog(Installation())
    log.is_away = True
    act = read_act({"kind": "activate", "target": "alpha", "reason": "x"}, who="olga", at=1.0)
    expected = (ActOutcome.UNKNOWN, "no broker answers at kafka.internal")
    assert verb.carry_out(config, log, act, 1) == expected  # type: ignore[arg-type]


@contextlib.contextmanager
def dashboard(config: Config) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "hgext.vcsreplicator.cli", "dashboard", "--config", config.file]
    with subprocess.Popen(command, cwd=CHECKOUT, env={**os.environ, "NOTIFY_SOCKET": ""}) as process:
        try:
            yield process
        finally:
            process.kill()


def ask(config: Config, address: str, fields: dict[str, str] | None = None) -> str:
    """Ask the running verb; nothing while it does not answer yet."""
    url = f"http://{tomllib.loads(Path(config.file).read_text())['dashboard']['listen']}{address}"
    headers = {**AS_OPERATOR, "Sec-Fetch-Site": "same-origin"}
    asked = urllib.request.Request(url, urlencode(fields).encode() if fields else None, headers)
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def test_a_killed_dashboard_leaves_its_act_begun_and_the_next_says_so(config: Config, log: Log, tmp_path: Path) -> None:
    """No notifier runs: the act waits for its answer, and there the dashboard is killed."""
    state = StateDatabase(str(tmp_path / "notifier.db"))
    fields = {"kind": "pause", "target": "lines", "reason": "because"}
    with closing(state), dashboard(config) as process:
        page = eventually(lambda: ask(config, "/deliveries"))
        fields["token"] = re.findall(r'name="token" value="([^"]+)"', page)[0]
        sending = threading.Thread(target=ask, args=(config, "/acts", fields))
        sending.start()
        eventually(lambda: state.requests.list_open("lines"))
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        sending.join(60)
    [recorded] = ActJournal(str(tmp_path / "acts.db"), log).list_newest(5)
    assert (recorded.outcome, recorded.result, recorded.act.reason) == (ActOutcome.BEGUN, None, "because")
    with dashboard(config):
        page = eventually(lambda: ask(config, "/acts"))
        assert "begun</strong>: no outcome is recorded" in page
        assert "olga (dashboard act 1)" in ask(config, "/deliveries")
