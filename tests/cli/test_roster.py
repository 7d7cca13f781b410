# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator roster` against an aggregator that runs."""

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import structlog
from click.testing import CliRunner, Result

from hgext.vcsreplicator.aggregator import offline_roster
from hgext.vcsreplicator.aggregator.loop import run
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.log import ACKS, PENDING, ROSTER, STATE, NewRecord, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.words.errors import Refused
from hgext.vcsreplicator.words.records import AGGREGATOR, AggregatorHeartbeat
from hgext.vcsreplicator.words.roster import KEY, Mirror, MirrorState, Roster
from hgext.vcsreplicator.words.rules import Rules
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.aggregator.aggregating import all_noticed, send
from testing.builders.aggregator.chains import Chain
from testing.waiting import eventually

pytestmark = pytest.mark.processes

SOON = 60.0


class Installation:
    """A log with a configuration, and an aggregator if it is started."""

    def __init__(self, folder: Path) -> None:
        self.config = folder / "vcsreplicator.toml"
        self.config.write_text(f'log = "sqlite://{folder}/log.db"\n[aggregator]\nbeat = 0.1\n')
        self.log = open_log(f"sqlite://{folder}/log.db", creates=True)
        self.log.create(topics())
        self.chain = Chain("group/one")
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        ready, settings = threading.Event(), AggregatorSettings(beat=0.1)
        self._thread = threading.Thread(target=lambda: run(settings, self.log, stop=self._stop, ready=ready.set))
        self._thread.start()
        assert ready.wait(SOON)

    def stop(self) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join(SOON)
        self._stop.clear()

    def close(self) -> None:
        self.stop()
        self.log.close()

    def write_roster(self, *rules: str, topic: str = ROSTER) -> None:
        """The roster as an older release may have left it: alpha includes by these rules."""
        alpha = Mirror(name="alpha", state=MirrorState.ACTIVE, rules=Rules(include=rules))
        self.log.append([NewRecord(topic=topic, key=KEY, value=to_json(Roster(version=7, mirrors=(alpha,))))])

    def lose_roster(self) -> None:
        """Version 7, which the aggregator's heartbeat names, is in its copy alone."""
        beat = to_json(AggregatorHeartbeat(time=1.0, roster=7, held=0))
        self.log.append([NewRecord(topic=STATE, key=AGGREGATOR, value=beat)])
        self.write_roster(topic=PENDING)

    def cli(self, *words: str) -> Result:
        return CliRunner().invoke(program, ["roster", *words, "--config", str(self.config)])

    def done(self, *words: str) -> str:
        result = self.cli(*words)
        assert result.exit_code == 0, result.output + str(result.exception)
        return result.output

    def refused(self, *words: str) -> str:
        result = self.cli(*words)
        assert isinstance(result.exception, Refused), result.output + str(result.exception)
        return str(result.exception)

    def push(self, count: int) -> None:
        send(self.log, self.chain.take(count))

    def ack(self, mirror: str, applied: int, serving: int | None = None) -> None:
        ack = self.chain.ack(mirror, applied, serving)
        self.log.append([NewRecord(topic=ACKS, key=f"{mirror}/{ack.repository}", value=to_json(ack))])


@pytest.fixture(autouse=True)
def quiet_log() -> Iterator[None]:
    """Keep the log lines of the aggregator, in this process, out of the output."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    made = Installation(tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_a_mirror_is_added_and_listed(installation: Installation) -> None:
    installation.start()
    assert "alpha is " in installation.done("add", "alpha", "--include", "re:group/[a-z]")
    eventually(lambda: "active" in installation.done("list"), timeout=SOON)
    assert "+re:group/[a-z]" in installation.done("list")
    roster = json.loads(installation.done("list", "--json"))
    assert roster["mirrors"][0]["rules"]["include"] == ["re:group/[a-z]"]


def test_a_removed_mirror_is_listed_only_when_all_are_asked_for(installation: Installation) -> None:
    mirrors = (Mirror(name="alpha", state=MirrorState.ACTIVE), Mirror(name="old", state=MirrorState.REMOVED))
    installation.log.append([NewRecord(topic=ROSTER, key=KEY, value=to_json(Roster(version=2, mirrors=mirrors)))])
    listed = installation.done("list")
    assert "alpha" in listed
    assert "old " not in listed
    assert "1 removed; to list it too: vcsreplicator roster list --all\n" in listed
    assert "old " in installation.done("list", "--all")
    assert [mirror["name"] for mirror in json.loads(installation.done("list", "--json"))["mirrors"]] == ["alpha", "old"]


def test_the_list_has_the_same_lag_as_json(installation: Installation) -> None:
    installation.start()
    installation.done("add", "alpha")
    installation.done("add", "beta")
    installation.push(3)
    installation.ack("alpha", 3)
    installation.ack("beta", 1)

    def listed() -> list[tuple[str, int, int]]:
        mirrors = json.loads(installation.done("list", "--json"))["mirrors"]
        return [(mirror["name"], mirror["behind"], mirror["holds"]) for mirror in mirrors]

    eventually(lambda: listed() == [("alpha", 0, 0), ("beta", 2, 2)], timeout=SOON)
    rows = [line.split() for line in installation.done("list").splitlines()]
    assert [row[-2:] for row in rows if row[:1] in (["alpha"], ["beta"])] == [["0", "0"], ["2", "2"]]


def test_a_misspelt_mirror_is_not_added(installation: Installation) -> None:
    """Notices would wait for it. A file without sections of mirrors, as each service may have one, says nothing of names."""
    installation.start()
    installation.done("add", "gamma")
    with installation.config.open("a") as file:
        file.write('[mirror.alpha]\nroot = "/alpha"\n[mirror.beta]\nroot = "/beta"\n')
    assert installation.refused("add", "aplha") == (
        f"{installation.config}: section [mirror.aplha] is missing (there are: alpha, beta); "
        "add --yes if another machine's file has it"
    )
    assert "aplha" not in installation.done("list")
    assert "aplha is " in installation.done("add", "aplha", "--yes")
    assert "alpha is " in installation.done("add", "alpha")


def test_dangerous_verbs_say_what_they_would_do_and_do_it_with_yes(installation: Installation) -> None:
    installation.start()
    installation.done("add", "alpha")
    installation.done("add", "beta")
    installation.push(3)
    installation.ack("alpha", 3, serving=0)
    eventually(lambda: "3 notices that wait for beta" in installation.refused("deactivate", "beta"), timeout=SOON)
    assert installation.refused("deactivate", "beta").endswith("add --yes to do it")
    assert installation.refused("deactivate", "alpha").startswith("0 notices"), "it has applied all, and beta has not"
    installation.done("deactivate", "beta", "--yes", "--reason", "disk full")
    eventually(lambda: "3 notices that wait for alpha" in installation.refused("deactivate", "alpha"), timeout=SOON)
    installation.ack("alpha", 3)
    eventually(lambda: all_noticed(installation.log, [installation.chain]), timeout=SOON)
    shown = installation.done("list", "--decisions")
    assert "disk full" in shown
    assert "when (UTC)" in shown


def test_a_repository_may_be_named_by_its_path(installation: Installation) -> None:
    installation.start()
    installation.done("add", "alpha", "--reason", "the only one")
    installation.push(1)
    eventually(
        lambda: "neither" not in installation.refused("deactivate", "alpha", "--repository", "group/one"), timeout=SOON
    )
    installation.done("deactivate", "alpha", "--repository", "group/one", "--yes")
    assert "group/one" in installation.done("list")
    assert "neither a path nor an id" in installation.refused("deactivate", "alpha", "--repository", "nowhere", "--yes")
    installation.done("activate", "alpha", "--repository", installation.chain.repository)
    assert "group/one" not in installation.done("list")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("join", "absent"), "there is no mirror absent; add it first"),
        (("add", "Alpha"), "expected lower-case letters"),
        (("add", "alpha", "--include", "re:("), "not a regular expression"),
        (("allow-empty", "yes"), "notices of a repository that no mirror gates would go out; add --yes to do it"),
    ],
)
def test_what_would_be_refused_is_refused_without_asking(
    installation: Installation, words: tuple[str, ...], complaint: str
) -> None:
    assert complaint in installation.refused(*words)
    assert installation.log.ends("roster-requests") == {0: 0}


def test_a_request_without_an_aggregator_is_kept_and_decided_later(installation: Installation) -> None:
    assert "has not decided within 0.1 s" in installation.refused("add", "alpha", "--wait", "0.1")
    installation.start()
    eventually(lambda: "alpha" in installation.done("list"), timeout=SOON)


def test_a_candidate_is_shown(installation: Installation) -> None:
    installation.start()
    installation.done("add", "alpha")
    assert ", candidate" in installation.done("candidate", "alpha", "yes")
    assert "serving, candidate" in installation.done("list")


def test_an_allowed_empty_roster_is_shown(installation: Installation) -> None:
    installation.start()
    assert "that no mirror gates are held" in installation.done("list")
    assert "that no mirror gates go out" in installation.done("allow-empty", "yes", "--yes")
    assert "that no mirror gates go out" in installation.done("list")


BAD = "re:(?!private/)"


def test_an_older_releases_bad_rule_stops_nothing_and_can_be_mended(installation: Installation) -> None:
    installation.write_roster(BAD)
    installation.start()
    installation.push(2)
    installation.ack("alpha", 2)
    eventually(lambda: all_noticed(installation.log, [installation.chain]), timeout=SOON)
    installation.done("rules", "alpha", "--exclude", "re:private/", "--include", "re:.*", "--yes")
    assert "-re:private/" in installation.done("list")


def test_a_roster_mended_offline_is_what_the_next_aggregator_follows(installation: Installation) -> None:
    installation.write_roster(BAD)
    installation.push(1)
    assert "add --yes to do it" in installation.refused("rules", "alpha", "--include", "path:elsewhere", "--offline")
    words = ("rules", "alpha", "--include", "path:elsewhere", "--yes", "--offline", "--reason", "mended")
    assert "roster version 8: alpha is active" in installation.done(*words)
    assert "+path:elsewhere" in installation.done("list")
    assert "mended" in installation.done("list", "--decisions")
    installation.done("allow-empty", "yes", "--yes", "--offline")
    installation.start()  # alpha, which never acked, gates nothing any more
    eventually(lambda: all_noticed(installation.log, [installation.chain]), timeout=SOON)


@pytest.mark.parametrize("words", [("add", "alpha"), ("deactivate", "alpha"), ("allow-empty", "yes", "--yes")])
def test_no_request_is_made_by_a_roster_that_the_log_lost(installation: Installation, words: tuple[str, ...]) -> None:
    installation.lose_roster()
    assert "topic roster: expected version 7, as the aggregator has it, found 0" in installation.refused(*words)
    assert installation.log.ends("roster-requests") == {0: 0}


def test_a_roster_that_the_log_lost_is_changed_offline_by_its_copy(installation: Installation) -> None:
    installation.lose_roster()
    assert "version 8: alpha is inactive" in installation.done("deactivate", "alpha", "--yes", "--offline")


def test_a_waiting_request_does_not_undo_a_later_offline_decision(installation: Installation) -> None:
    installation.write_roster(BAD)
    installation.refused("rules", "alpha", "--include", "re:older", "--yes", "--wait", "0")
    installation.log.append([NewRecord(topic="roster-requests", key="x", value=b"no request")])
    installation.done("rules", "alpha", "--include", "re:newer", "--yes", "--offline")
    installation.start()
    installation.done("deactivate", "alpha", "--yes")  # decided after what waited
    assert "+re:newer" in installation.done("list")
    roster = json.loads(installation.done("list", "--json"))
    decided = [(decision["request"]["verb"], decision.get("refusal")) for decision in roster["recent"]]
    assert [verb for verb, _ in decided] == ["rules", "rules", "deactivate"]
    assert "was decided offline before it" in decided[0][1]
    assert decided[1:] == [("rules", None), ("deactivate", None)]


def test_nothing_is_decided_offline_while_an_aggregator_runs(installation: Installation) -> None:
    installation.write_roster()
    installation.start()
    assert "an aggregator runs" in installation.refused("deactivate", "alpha", "--yes", "--offline")
    installation.done("deactivate", "alpha", "--yes")  # it was not fenced
    installation.stop()
    assert "alpha is active" in installation.done("activate", "alpha", "--offline")


def test_only_verbs_that_can_do_without_an_aggregator_take_offline() -> None:
    group = program.get_command(click.Context(program), "roster")
    assert isinstance(group, click.Group)
    taking = {name for name, verb in group.commands.items() if any("--offline" in each.opts for each in verb.params)}
    assert taking == {verb.value for verb in offline_roster.VERBS}


@pytest.mark.parametrize("words", [("add", "beta"), ("join", "alpha"), ("remove", "alpha", "--yes")])
def test_what_needs_an_aggregator_takes_no_offline_and_changes_nothing(
    installation: Installation, words: tuple[str, ...]
) -> None:
    installation.write_roster()
    done = CliRunner().invoke(program, ["roster", *words, "--offline", "--config", str(installation.config)])
    assert done.exit_code == 2
    assert "No such option '--offline'" in done.stderr
    assert installation.log.ends("roster-requests") == {0: 0}
