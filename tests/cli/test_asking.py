# SPDX-License-Identifier: GPL-2.0-or-later
"""`status` and `check` say the same whether they ask a dashboard or read the log, and read it in every case of doubt."""

import contextlib
import gc
import json
import re
import shutil
import socket
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from hgext.vcsreplicator.cli import asking, progress
from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.config import Config
from hgext.vcsreplicator.dashboard.asked import question
from hgext.vcsreplicator.dashboard.server import _answer_questions
from hgext.vcsreplicator.log import ACKS, SERVICES, STATE, Log
from hgext.vcsreplicator.status.follower import WATCH
from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.errors import BadConfig
from hgext.vcsreplicator.words.records import AggregatorHeartbeat, MirrorHeartbeat, ServiceReport, ServiceTrouble
from testing.waiting import eventually
from tests.dashboard.conftest import AwayLog, Installation, settings_with, watching

CONFIG = """
log = "kafka://localhost:9092"
[relay]
socket = "/nowhere/relay.sock"
source = "hg.example"
[relay.roots]
"/nowhere" = ""
[mirror.alpha]
[mirror.gamma]
[notifier.hooks]
[notifier.lines]
[dashboard]
socket = "{socket}"
"""


class Verbs:
    """`status` and `check` on a machine whose services' file names a dashboard's socket."""

    def __init__(self, folder: Path, installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
        self.warned = ""
        self.installation, self.socket, self.opened = installation, str(folder / "socket"), 0
        self.file = folder / "x.toml"
        self.file.write_text(CONFIG.format(socket=self.socket))
        self.file.chmod(0o640)
        self.without = folder / "without.toml"
        self.without.write_text(CONFIG.partition("[dashboard]")[0])
        self.without.chmod(0o640)

        @contextlib.contextmanager
        def open_log(config: object) -> Iterator[Log]:
            self.opened += 1
            yield installation.log

        monkeypatch.setattr(progress, "log_of", open_log)
        # One clock for the log, the dashboard and the verbs: ages are equal.
        monkeypatch.setattr(SystemClock, "now", lambda clock: installation.clock.now())
        monkeypatch.setattr(SystemClock, "monotonic", lambda clock: installation.clock.monotonic())

    @contextlib.contextmanager
    def dashboard(self, log: object = None, url: str = "kafka://localhost:9092") -> Iterator[None]:
        """A dashboard that has read the log."""
        made = settings_with(self.socket)
        with watching(self.installation.sources, log) as followed, _answer_questions(made, url, followed):  # type: ignore[arg-type]
            eventually(lambda: followed.trouble is None)
            yield

    def say(self, *words: str, file: Path | None = None) -> tuple[int, str]:
        result = CliRunner().invoke(program, [*words, "--config", str(file or self.file)])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        self.warned = result.stderr
        return result.exit_code, result.stdout

    def read(self, *words: str) -> tuple[int, str]:
        """What the verb reads itself."""
        before = self.opened
        said = self.say(*words, file=self.without)
        assert self.opened == before + 1
        return said

    def ask(self, *words: str) -> tuple[int, str]:
        """What the verb says without opening the log."""
        before = self.opened
        said = self.say(*words)
        assert self.opened == before, "the dashboard did not answer"
        return said

    def read_in_doubt(self, *words: str) -> tuple[int, str]:
        """What the verb says that reads the log although a dashboard might be asked."""
        before = self.opened
        said = self.say(*words)
        assert self.opened == before + 1, "the dashboard answered"
        return said


@pytest.fixture
def verbs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Verbs]:
    folder = Path(tempfile.mkdtemp(prefix="asking-"))  # a socket's path may have 107 bytes
    installation = Installation()
    for path in ("public/firefox", "secret/payroll", "public/tools"):
        for _ in range(3):
            installation.push(path)
    report_well(installation)
    yield Verbs(folder, installation, monkeypatch)
    shutil.rmtree(folder)


def report_well(installation: Installation) -> None:
    """All services send a heartbeat, and have no trouble."""
    installation.beat()
    for name in ("destination hooks", "destination lines"):
        installation.write(SERVICES, name, ServiceReport(time=installation.clock.now(), version="1"))
    end = installation.log.ends("notices")[0]
    for group in ("notifier-hooks", "notifier-lines"):
        installation.log.acknowledge(group, "notices", {0: end})


def be_well(installation: Installation) -> None:
    report_well(installation)


def stop_the_aggregator(installation: Installation) -> None:
    installation.clock.advance(100.0)
    report_well(installation)
    installation.clock.advance(31.0)
    for name in installation.mirrors:
        beat = MirrorHeartbeat(mirror=name, time=installation.clock.now(), positions={}, version="1")
        installation.write(ACKS, name, beat)


def silence_a_mirror(installation: Installation) -> None:
    installation.push("public/tools", serving=("alpha",))
    installation.clock.advance(61.0)
    beat = MirrorHeartbeat(mirror="alpha", time=installation.clock.now(), positions={}, version="1")
    installation.write(ACKS, "alpha", beat)
    installation.write(STATE, "aggregator", AggregatorHeartbeat(time=installation.clock.now(), roster=1, held=0))
    for name in ("destination hooks", "destination lines", "relay hg.example"):
        installation.write(SERVICES, name, ServiceReport(time=installation.clock.now(), version="1"))


def hold_notices(installation: Installation) -> None:
    for path in ("public/tools", "public/firefox", "secret/payroll"):
        for _ in range(2):
            installation.push(path, serving=("alpha",))
    installation.clock.advance(61.0)
    report_well(installation)


def fill_a_disk(installation: Installation) -> None:
    report_well(installation)
    beat = MirrorHeartbeat(
        mirror="beta", time=installation.clock.now(), positions={}, version="1", trouble="no space\n\x1b[31m"
    )
    installation.write(ACKS, "beta", beat)


def detach(installation: Installation) -> None:
    chain = installation.push("public/tools", serving=("alpha",))
    installation.write(ACKS, f"beta/{chain.repository}", replace(chain.ack("beta", 3), detached="locked", note="x"))
    report_well(installation)


def trouble_a_destination(installation: Installation) -> None:
    report_well(installation)
    now = installation.clock.now()
    troubles = (
        ServiceTrouble(text="destination lines is failing: refused", since=now - 500),
        ServiceTrouble(text="subscription ci is failing \udc80 <i>", since=now - 100, is_urgent=True),
    )
    report = ServiceReport(time=now, version="1", count=9, troubles=troubles)
    installation.write(SERVICES, "destination lines", report)
    installation.log.acknowledge("notifier-hooks", "notices", {0: 2})
    installation.log.acknowledge("notifier-old", "notices", {0: 1})


def stop_the_relay(installation: Installation) -> None:
    installation.clock.advance(61.0)
    now = installation.clock.now()
    for name in installation.mirrors:
        installation.write(ACKS, name, MirrorHeartbeat(mirror=name, time=now, positions={}, version="1"))
    installation.write(STATE, "aggregator", AggregatorHeartbeat(time=now, roster=1, held=0, alarms=("an alarm",)))
    for name in ("destination hooks", "destination lines"):
        installation.write(SERVICES, name, ServiceReport(time=now, version="1"))


STATES: dict[str, tuple[Callable[[Installation], None], str]] = {
    "well": (
        be_well,
        "OK - aggregator, relay, 2 mirrors and 2 destinations are caught up; note: section [mirror.gamma] of",
    ),
    "aggregator": (stop_the_aggregator, "the aggregator has sent no heartbeat for 31 s"),
    "mirror": (silence_a_mirror, "mirror beta is silent"),
    "notices": (hold_notices, "mirror beta makes no progress on"),
    "disk": (fill_a_disk, "mirror beta cannot write to its disk"),
    "detached": (detach, "public/tools is detached on beta"),
    "destination": (trouble_a_destination, "subscription ci is failing"),
    "relay": (stop_the_relay, "the relay hg.example has sent no heartbeat"),
}
WORDS = (
    ["status"],
    ["check"],
    ["check", "--json"],
    ["check", "--warn", "1", "--critical", "2"],
    ["check", "--patience", "0"],
    ["check", "--patience", "1000"],
)


@pytest.mark.parametrize("state", STATES)
def test_the_output_is_the_same_asked_or_read(verbs: Verbs, state: str) -> None:
    arrange, found = STATES[state]
    with verbs.dashboard():
        arrange(verbs.installation)
        for words in WORDS:
            assert verbs.ask(*words) == verbs.read(*words)
        assert found in verbs.ask("check")[1]
        # More of everything, of which the dashboard has read the former state.
        arrange(verbs.installation)
        for words in WORDS:
            assert verbs.ask(*words) == verbs.read(*words)


def test_a_record_that_was_committed_just_before_is_in_the_answer(verbs: Verbs) -> None:
    with verbs.dashboard():
        for number in range(10, 20):
            verbs.installation.push("public/tools", serving=("alpha",))
            assert re.search(r"events +(\d+)", verbs.ask("status")[1])[1] == str(number)  # type: ignore[index]


def test_the_whole_picture_is_read_from_the_log(verbs: Verbs) -> None:
    with verbs.dashboard():
        code, _ = verbs.read_in_doubt("status", "--json")
    assert code == 0


def test_what_the_outboxes_say_is_looked_for_also_if_a_dashboard_answers(verbs: Verbs) -> None:
    store = verbs.file.parent / "repos/one/.hg/store"
    store.mkdir(parents=True)
    (store.parent / "requires").write_text("store\n")
    (store / "outbox.0001.log").write_bytes(b"damaged")
    for file in (verbs.file, verbs.without):
        file.write_text(file.read_text().replace("/nowhere", str(verbs.file.parent / "repos"), 2))
    with verbs.dashboard():
        assert "its outbox cannot be read" not in verbs.ask("check")[1]
        stop_the_relay(verbs.installation)
        said = verbs.say("check")
        assert f"{verbs.file.parent}/repos/one: its outbox cannot be read" in said[1]
        assert said[1].split("since")[0] == verbs.read("check")[1].split("since")[0]


def test_without_a_dashboard_the_log_is_read(verbs: Verbs) -> None:
    assert verbs.read_in_doubt("status") == verbs.read("status")
    code, text = verbs.read_in_doubt("check")
    assert (code, text.partition(";")[0]) == (0, "OK - aggregator, relay, 2 mirrors and 2 destinations are caught up")


def test_a_program_reads_what_was_looked_at_and_the_notes(verbs: Verbs) -> None:
    said = json.loads(verbs.read("check", "--json")[1])
    assert (said["state"], said["findings"]) == ("OK", [])
    assert said["watched"] == "aggregator, relay, 2 mirrors and 2 destinations"
    [note] = said["notes"]
    assert note.endswith("vcsreplicator roster add gamma")
    assert f"note: {note}" in " ".join(verbs.read("status")[1].split())


def test_a_socket_that_a_dashboard_left_behind_is_no_dashboard(verbs: Verbs) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(verbs.socket)
    assert verbs.read_in_doubt("check") == verbs.read("check")


@pytest.mark.parametrize("wrong", ['"status.sock"', "7", '""', '["/x"]', f'"/{"x" * 200}"'])
def test_a_wrong_setting_stops_no_verb(verbs: Verbs, wrong: str) -> None:
    verbs.file.write_text(CONFIG.replace('"{socket}"', wrong))
    assert verbs.read_in_doubt("check") == verbs.read("check")


def test_a_dashboard_of_another_log_or_version_is_not_believed(verbs: Verbs, monkeypatch: pytest.MonkeyPatch) -> None:
    with verbs.dashboard(url="kafka://localhost:9093"):
        assert verbs.read_in_doubt("check") == verbs.read("check")
    with verbs.dashboard():
        assert verbs.ask("check") == verbs.read("check")
        verbs.file.write_text(verbs.file.read_text().replace("9092", "9093"))
        assert verbs.read_in_doubt("check") == verbs.read("check")
    verbs.file.write_text(verbs.without.read_text() + f'[dashboard]\nsocket = "{verbs.socket}"\n')
    monkeypatch.setattr("hgext.vcsreplicator.dashboard.server.VERSION", "0.0.9")
    with verbs.dashboard():
        assert verbs.read_in_doubt("check") == verbs.read("check")


def test_a_dashboard_that_has_trouble_with_the_log_is_not_asked_twice(verbs: Verbs) -> None:
    log = AwayLog(verbs.installation)
    with verbs.dashboard(log=log):
        verbs.ask("check")
        log.is_away = True
        stop_the_aggregator(verbs.installation)
        code, text = verbs.read_in_doubt("check")
        assert code == 2
        assert "the aggregator has sent no heartbeat" in text


def test_a_dashboard_that_is_not_sure_of_the_time_leaves_it_to_the_verb(
    verbs: Verbs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verb waits for a heartbeat; none comes."""
    with verbs.dashboard():
        verbs.installation.clock.set_back(3600.0)
        update = asking.Follower.update

        def wait(self: asking.Follower) -> object:
            verbs.installation.clock.advance(WATCH)
            return update(self)

        class Waiting(asking.Follower):
            update = wait  # type: ignore[assignment]

        monkeypatch.setattr(asking, "Follower", Waiting)
        code, text = verbs.read_in_doubt("check")
        assert code == 2
        assert "the aggregator has sent no heartbeat" in text


def test_a_stranger_at_the_socket_is_not_believed(verbs: Verbs, monkeypatch: pytest.MonkeyPatch) -> None:
    with verbs.dashboard():
        verbs.ask("check")
        monkeypatch.setattr("hgext.vcsreplicator.dashboard.asked.question.read_peer", lambda connection: (65533, 65533))
        assert verbs.read_in_doubt("check") == verbs.read("check")


def test_a_socket_that_is_not_there_is_not_mentioned(verbs: Verbs) -> None:
    verbs.read_in_doubt("check")
    assert verbs.warned == ""


def test_a_verb_says_why_it_read_the_log_although_there_is_a_socket(verbs: Verbs) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as left_behind:
        left_behind.bind(verbs.socket)
    verbs.read_in_doubt("check", "--json")
    assert verbs.warned == f"dashboard not asked: {verbs.socket}: Connection refused; the log was read instead\n"


def test_a_verb_says_that_it_does_not_trust_the_socket(verbs: Verbs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question, "_is_believed", lambda user, path: False)
    with verbs.dashboard():
        verbs.read_in_doubt("status")
    assert "nor the owner of a folder that only root could make; the log was read instead\n" in verbs.warned


def test_no_garbage_is_looked_for_while_the_log_is_read(verbs: Verbs) -> None:
    seen = list[bool]()
    verbs.installation.log.before["reader"] = lambda _: seen.append(gc.isenabled())
    verbs.read("check")
    assert set(seen) == {False}
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("section", "topic"), [("", "raw"), ('input = "log:mine"', "mine"), ('input = "queue:x"', None)]
)
def test_the_topic_of_the_files_decoders_is_looked_at(section: str, topic: str | None) -> None:
    config = Config(file="x.toml", tables={"decode": tomllib.loads(section)})
    assert asking.expect(config).raw == topic


def test_a_name_that_no_topic_of_documents_may_have_is_said() -> None:
    config = Config(file="x.toml", tables={"decode": {"input": "log:events"}})
    with pytest.raises(BadConfig, match=r"^x\.toml: decode\.input: expected a topic of its own, 'events' is one of"):
        asking.expect(config)
