# SPDX-License-Identifier: GPL-2.0-or-later
"""What verbs print: every name complete and unchanged, brackets included."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from hgext.vcsreplicator.aggregator.decisions.arrival import Arrival, follow
from hgext.vcsreplicator.cli import subscription
from hgext.vcsreplicator.cli.bootstrap import _Display
from hgext.vcsreplicator.cli.display import table
from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.log import ACKS, ERRORS, EVENTS, NOTICES, ROSTER, STATE, Log, NewRecord, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.mirror.jobs.bootstrap import CopyFailed, Progress
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.errors import visible
from hgext.vcsreplicator.words.records import AggregatorHeartbeat, ErrorRecord, MirrorHeartbeat, Notice, Reason
from hgext.vcsreplicator.words.roster import KEY, Mirror, MirrorState, Roster
from hgext.vcsreplicator.words.rules import Rules
from hgext.vcsreplicator.words.shape import to_json
from notifier.destinations.webhook.deliveries import Deliveries
from notifier.destinations.webhook.subscription import Subscription
from testing.builders.aggregator.chains import Chain
from testing.builders.aggregator.states import state_of

NAMES = ["[red]repo[/]", "[/bold]", "group/:smile:", "a/" + "long-name" * 12]


def put(log: Log, topic: str, key: str, value: object) -> None:
    log.append([NewRecord(topic=topic, key=key, value=to_json(value))])


def installed(log: Log, name: str) -> None:
    """One repository of this name, of which a mirror says something."""
    chain = Chain(name)
    event = chain.next()
    log.append([NewRecord(topic=EVENTS, key=event.repository, value=wire.encode(event))])
    state = state_of(event)
    put(log, STATE, event.repository, state)
    put(log, STATE, "aggregator", AggregatorHeartbeat(time=0.0, roster=1, held=1))
    ack = replace(chain.ack("alpha", 1), detached=Reason.CORRUPT, note=f"bad {name}")
    put(log, ACKS, f"alpha/{event.repository}", ack)
    put(log, ACKS, "alpha", MirrorHeartbeat(mirror="alpha", time=0.0, positions={}, version="1"))
    mirror = Mirror(
        name="alpha",
        state=MirrorState.ACTIVE,
        rules=Rules(exclude=(f"path:{name}x",)),
        deactivated=(event.repository,),
    )
    put(log, ROSTER, KEY, Roster(mirrors=(mirror,)))
    reject = ErrorRecord(
        time=0.0, service="notifier", reason=f"no {name}", topic=EVENTS, partition=0, offset=0, key=None, value=""
    )
    put(log, ERRORS, "x", reject)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "x.toml").write_text(
        f'log = "sqlite://{tmp_path}/log.db"\n[public.urls]\n"" = "https://hg.example/"\n'
        f'[notifier]\nstate = "{tmp_path}/notifier.db"\n'
        f'[notifier.hooks]\ntype = "webhook"\ndatabase = "{tmp_path}/deliveries.db"\n'
    )
    with open_log(f"sqlite://{tmp_path}/log.db", creates=True) as log:
        log.create(topics())
    return tmp_path


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        ("deliveries list", "no deliveries"),
        ("subscription list", "no subscriptions"),
        ("subscription history", "no changes"),
        ("errors list", "no errors"),
        ("destination requests", "no requests"),
        (
            "roster list --decisions",
            "no mirrors|version 0; notices of a repository that no mirror gates are held|no decisions",
        ),
    ],
)
def test_a_list_of_nothing_is_a_line_that_says_so(folder: Path, verb: str, said: str) -> None:
    Deliveries(str(folder / "deliveries.db")).close()
    done = CliRunner().invoke(program, [*verb.split(), "--config", str(folder / "x.toml")])
    assert done.output == said.replace("|", "\n") + "\n"
    assert done.exit_code == 0


def test_a_time_is_one_line_of_a_terminal_of_80_columns() -> None:
    out, reason = io.StringIO(), "it serves all that was released " * 3
    headings = ("when (UTC)", "version", "who", "what", "reason", "refused")
    rows = [("2026-11-30 11:30:27", "1", "dana@notifier1", "activate alpha", reason, "")]
    Console(file=out, width=80).print(table(headings, rows))
    assert "2026-11-30 11:30:27" in out.getvalue()


def said(folder: Path, *words: str) -> str:
    result = CliRunner().invoke(program, [*words, "--config", str(folder / "x.toml")])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.output


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("status",), "{}"),
        (("check",), "{}"),
        (("trace", "{}"), "bad {}"),
        (("roster", "list"), "-path:{}x"),
        (("errors",), "no {}"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_a_name_is_printed_whole_and_as_it_is(folder: Path, words: tuple[str, ...], wanted: str, name: str) -> None:
    with open_log(f"sqlite://{folder}/log.db", creates=True) as log:
        installed(log, name)
    assert wanted.format(name) in said(folder, *(word.format(name) for word in words))


def test_an_error_of_another_release_hides_no_others(folder: Path) -> None:
    with open_log(f"sqlite://{folder}/log.db", creates=True) as log:
        installed(log, "x")
        log.append([NewRecord(topic=ERRORS, key="x", value=b'{"severity": 3}')])
    printed = said(folder, "errors")
    assert "no x" in printed
    assert "a record that this release does not understand" in printed


def test_status_names_a_mirror_that_never_said_how_far_it_is(folder: Path) -> None:
    with open_log(f"sqlite://{folder}/log.db", creates=True) as log:
        installed(log, "x")
        put(log, ROSTER, KEY, Roster(mirrors=(Mirror(name="quiet", state=MirrorState.ACTIVE),)))
    [row] = [line for line in said(folder, "status").splitlines() if line.split()[:4] == ["x", "1", "0", "0"]]
    assert row.split()[4:] == ["quiet"]


def test_an_adopted_history_is_traced_and_not_the_one_before_it(folder: Path) -> None:
    old, new = Chain("x"), Chain("x", incarnation=2)
    with open_log(f"sqlite://{folder}/log.db", creates=True) as log:
        for chain in (old, new):
            event = chain.next()
            log.append([NewRecord(topic=EVENTS, key=event.repository, value=wire.encode(event))])
            put(log, NOTICES, event.repository, Notice(event=event, time=0.0, roster=1, acks=(), previous={}))
        state = follow(follow(None, old.events[0], Arrival.FIRST, 1), new.events[0], Arrival.ADOPTED, 1)
        put(log, STATE, state.repository, replace(state, noticed=1))
    printed = said(folder, "trace", "x", "--event", "1")
    assert f"id {new.events[0].id}" in printed
    assert "notice written: offset 1," in printed


def test_a_group_that_another_client_named_moves_no_cursor(folder: Path) -> None:
    chain = Chain("x")
    event = chain.next()
    with open_log(f"sqlite://{folder}/log.db", creates=True) as log:
        log.append([NewRecord(topic=EVENTS, key=event.repository, value=wire.encode(event))])
        put(log, NOTICES, event.repository, Notice(event=event, time=0.0, roster=1, acks=(), previous={}))
        put(log, STATE, event.repository, replace(follow(None, event, Arrival.FIRST, 1), noticed=1))
        log.acknowledge("notifier-odd\x1b[2J", NOTICES, {0: 1})
    assert "\nodd\\x1b[2J: " in said(folder, "trace", "x")


@pytest.mark.parametrize("name", NAMES)
def test_a_subscription_is_printed_whole_and_as_it_is(folder: Path, name: str) -> None:
    deliveries = Deliveries(str(folder / "deliveries.db"))
    deliveries.subscriptions.add(
        name, Subscription(url=f"https://ci.example/{name}"), origin="command", who=f"{name}@host", now=0.0
    )
    deliveries.close()
    assert f"https://ci.example/{name}" in said(folder, "subscription", "list")
    assert f"{name}@host" in said(folder, "subscription", "history")


def test_on_80_columns_a_subscription_keeps_its_words_whole(tmp_path: Path) -> None:
    deliveries = Deliveries(str(tmp_path / "deliveries.db"))
    wanted = Subscription(
        url="https://ci.example/hooks/vcsreplicator", filter="data.repo_url == 'https://hg.example/x'"
    )
    deliveries.subscriptions.add("release-automation", wanted, origin="command", who="dana@host", now=0.0)
    deliveries.subscriptions.pause("release-automation", "its machine moves to another room", who="dana@host", now=1.0)
    [stored] = deliveries.subscriptions.all()
    deliveries.close()
    output = io.StringIO()
    Console(file=output, width=80).print(
        table(subscription.HEADINGS, [subscription._row_of(subscription._as_data(stored))])
    )
    shown = output.getvalue()
    for word in ("release-automation", "command", "changegroup.1", "newrepo.1", "obsolete.1"):
        assert re.search(rf"(^| ){re.escape(word)}( |$)", shown, re.MULTILINE), shown


def test_on_80_columns_a_long_name_is_folded_not_cut() -> None:
    name, output = "group/" + "x" * 150, io.StringIO()
    Console(file=output, width=80).print(table(("repository", "behind"), [(name, "3")]))
    lines = output.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "".join(line.split()[0] for line in lines[1:]) == name


def test_what_would_move_the_cursor_is_written_out() -> None:
    assert visible("Zoë\x1b[2J\r\nroot") == "Zoë\\x1b[2J\\r\\nroot"


def test_the_numbers_of_a_bootstrap_fit_into_eighty_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("COLUMNS", "80")
    with _Display(as_json=False) as report:
        report(Progress(total=12345, present=10000, failed=1, bytes=123_456_789_012))
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert "10000/12345 repositories  123.5 GB" in shown
    assert "…" not in shown


def test_a_bootstrap_says_once_why_a_repository_cannot_be_copied_yet(capsys: pytest.CaptureFixture[str]) -> None:
    with _Display(as_json=False) as report:
        for path, note in [("a", "closed"), ("b", "closed"), ("a", "closed"), ("a", "away"), ("a", "closed")]:
            report(CopyFailed(path=path, note=note, is_final=False))
        report(CopyFailed(path="a", note="closed", is_final=True))
    assert capsys.readouterr().err.splitlines() == [
        "a: closed (retried)",
        "b: closed (retried)",
        "a: away (retried)",
        "a: closed (retried)",
        "a: closed (given up)",
    ]
