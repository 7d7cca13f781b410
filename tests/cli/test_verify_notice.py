# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator verify-notice`: says who signed and which mirrors served, or in one line what is wrong."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.keys.pairs import KeyPair, make_key
from hgext.vcsreplicator.keys.signed import sign_ack, sign_notice
from hgext.vcsreplicator.words.errors import ReplicationError
from testing.builders.aggregator.chains import Chain
from testing.builders.notifier.notices import a_notice
from tests.house.shown import PAGES

CHAIN = Chain("x")
CHAIN.take(3)
NOTICE = a_notice(CHAIN.events[2], {"changegroup.1": "5" * 32})
HEADS = list(NOTICE.event.changes.heads_added)


@pytest.fixture
def aggregator(tmp_path: Path) -> KeyPair:
    return make_key(tmp_path / "aggregator")


@pytest.fixture
def mirror(tmp_path: Path) -> KeyPair:
    return make_key(tmp_path / "alpha")


@pytest.fixture
def signed(aggregator: KeyPair, mirror: KeyPair) -> str:
    acks = (sign_ack(mirror, CHAIN.ack("alpha", 3, time=1e9)), CHAIN.ack("beta", 3, time=1e9))
    return sign_notice(aggregator, NOTICE, acks)


def message(line: str, **members: Any) -> dict[str, Any]:
    """The message of the notice as a line of JSON has it."""
    return {
        "type": "changegroup.1",
        "data": {"heads": HEADS, "pushlog_pushes": [{"pushid": 3}], "repo_url": "https://hg.example/x"},
        "id": f"{NOTICE.event.id}.changegroup.1",
        "previous": f"{'5' * 32}.changegroup.1",
        "repository": NOTICE.event.repository,
        "sequence": 3,
        "signed": line,
        **members,
    }


def verify(text: str, *keys: str) -> Result:
    words = [word for key in keys for word in ("--key", key)]
    return CliRunner().invoke(program, ["verify-notice", *words], input=text)


def test_a_notice_is_described_with_its_signers_and_times(aggregator: KeyPair, mirror: KeyPair, signed: str) -> None:
    done = verify(f"{signed}\n", aggregator.signing, f"alpha={mirror.signing}")
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == [
        f"x: changegroup.1: event {NOTICE.event.id}, sequence 3 of repository {NOTICE.event.repository}",
        f"  written 2023-11-14 22:13:23 UTC at version 1 of the roster, signed by {aggregator.signing}",
        f"  alpha served it by 2001-09-09 01:46:40 UTC, signed by {mirror.signing}",
        "  beta served it by 2001-09-09 01:46:40 UTC, as the aggregator says",
    ]


def test_one_of_two_keys_verifies_a_notice(aggregator: KeyPair, mirror: KeyPair, signed: str, tmp_path: Path) -> None:
    newer = make_key(tmp_path / "aggregator")
    assert verify(signed, newer.signing, aggregator.signing).exit_code == 0
    done = verify(signed, newer.signing)
    assert done.exit_code == 2
    assert f"notice 1: not signed by a key that was given, but by '{aggregator.signing}'" in done.output


def test_a_message_is_compared_with_its_signed_notice(aggregator: KeyPair, signed: str) -> None:
    assert verify(json.dumps(message(signed)), aggregator.signing).exit_code == 0


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"type": "phase.1"}, "type of the message: 'phase.1', signed: changegroup.1"),
        ({"id": "0" * 32 + ".changegroup.1"}, "id of the message"),
        ({"previous": None}, "previous of the message: 'None'"),
        ({"repository": "0" * 32}, "repository of the message"),
        ({"sequence": 4}, "sequence of the message: '4', signed: '3'"),
        ({"data": {"heads": ["0" * 40], "pushlog_pushes": [{"pushid": 3}]}}, "SHA-256 of the heads of the message"),
        ({"data": {"heads": HEADS}}, "pushids of the message: '[]', signed: '[3]'"),
        (
            {"data": {"heads": HEADS, "pushlog_pushes": [{"pushid": 3}, {"pushid": 2}]}},
            "pushids of the message: '[3, 2]', signed: '[3]'",
        ),
        ({"data": {"heads": 5}}, "data.heads: expected a list"),
        ({"data": {"heads": ["\ud800"]}}, "data.heads: expected nodes of 40 hexadecimal digits, got '\\ud800'"),
        ({"data": None}, "data: expected an object"),
        ({"signed": None}, "signed: expected text"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "+".join(value),
)
def test_a_message_that_says_something_else_is_refused(
    aggregator: KeyPair, signed: str, members: dict[str, Any], said: str
) -> None:
    good, bad = json.dumps(message(signed)), json.dumps(message(signed, **members))
    done = verify(f"{good}\n{bad}\n{good}\n", aggregator.signing)
    assert done.exit_code == 2
    [line] = [line for line in done.output.splitlines() if line.startswith("vcsreplicator:")]
    assert line.startswith("vcsreplicator: notice 2: ")
    assert said in line
    assert done.output.count("served it by") == 4, "the others are verified"


def test_two_heads_written_as_one_are_refused(aggregator: KeyPair) -> None:
    """Their hash is that of the two: they are joined by newlines."""
    changes = replace(NOTICE.event.changes, heads_added=("a" * 40, "b" * 40))
    line = sign_notice(aggregator, replace(NOTICE, event=replace(NOTICE.event, changes=changes)), ())
    data = {"heads": ["a" * 40, "b" * 40], "pushlog_pushes": [{"pushid": 3}]}
    assert verify(json.dumps(message(line, data=data)), aggregator.signing).exit_code == 0
    data["heads"] = ["a" * 40 + "\n" + "b" * 40]
    assert verify(json.dumps(message(line, data=data)), aggregator.signing).exit_code == 2


def test_control_characters_of_a_signed_notice_are_shown_escaped(aggregator: KeyPair) -> None:
    notice = replace(NOTICE, previous={"\x1b[2J\ud800": None})
    done = verify(sign_notice(aggregator, notice, ()), aggregator.signing)
    assert (done.exit_code, done.exception) == (0, None)
    assert done.output.startswith("x: \\x1b[2J\\ud800: event ")


@pytest.mark.parametrize("member", ["id", "sequence", "repo_url"])
def test_a_message_in_which_a_member_stands_twice_is_refused(aggregator: KeyPair, signed: str, member: str) -> None:
    """A receiver may take the first of the two, which nothing compared with what is signed."""
    line = json.dumps(message(signed)).replace(f'"{member}": ', f'"{member}": "forged", "{member}": ')
    done = verify(line, aggregator.signing)
    assert done.exit_code == 2, done.output
    assert f"member '{member}' stands twice" in done.output


@pytest.mark.parametrize("text", ["{", "{}", '{"signed": "x"}', "\x1b[2J", "\0", "x" * 10_000_000])
def test_garbage_is_refused_in_one_visible_line(aggregator: KeyPair, text: str) -> None:
    done = verify(text, aggregator.signing)
    assert done.exit_code == 2
    assert done.output.rstrip("\n").isprintable()
    assert len(done.output) < 400


def test_without_any_notice_nothing_is_verified(aggregator: KeyPair) -> None:
    assert "no notice to verify" in str(verify("\n", aggregator.signing).exception)


@pytest.mark.parametrize("key", ["x25519:" + "A" * 43 + "=", "alpha=", "", "alpha=ed25519:AAAA"])
def test_what_is_no_key_of_signatures_is_refused_with_where_to_get_one(key: str) -> None:
    error = verify("x", key).exception
    assert isinstance(error, ReplicationError)
    assert "vcsreplicator key NAME --signing" in str(error)


def documented() -> str:
    """The verifier of the page."""
    section = PAGES["docs/messages.md"].partition("## Signed notices")[2]
    return section.partition("```python\n")[2].partition("```")[0]


def run_documented(text: str, *keys: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", documented(), *keys]
    return subprocess.run(words, input=text, capture_output=True, text=True, check=False)


@pytest.mark.processes
def test_the_verifier_of_the_page_verifies_the_same(aggregator: KeyPair, mirror: KeyPair, signed: str) -> None:
    assert len(documented().splitlines()) <= 20
    done = run_documented(signed, aggregator.signing)
    assert done.stdout.splitlines() == [
        f"{NOTICE.event.id} changegroup.1",
        f"alpha served it by 1000000000.000000, signed by {mirror.signing}",
        "beta served it by 1000000000.000000, signed by -",
    ], done.stderr
    forged = sign_notice(aggregator, replace(NOTICE, roster=2), ())
    for line in (
        signed.replace('"roster":1', '"roster":2'),
        " ".join([*signed.split(" ")[:2], forged.split(" ", 2)[2]]),
    ):
        done = run_documented(line, aggregator.signing)
        assert done.returncode != 0
        assert "InvalidSignature" in done.stderr
    assert run_documented(signed, mirror.signing).returncode == 1
