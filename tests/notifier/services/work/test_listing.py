# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator pushes` lists what the worker recorded."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hgext.vcsreplicator.cli.pushes import command
from hgext.vcsreplicator.words.errors import BadConfig, Refused
from notifier.messages.pushes import QueuedPush, from_body
from notifier.services.work.backlog import TakenMessage
from notifier.services.work.database import ChangesetRecord, RepositoryKey, WorkDatabase
from notifier.services.work.parking import ParkedMessages

pytestmark = pytest.mark.processes

URL = "https://hg.example/l10n/de"


def a_record(number: int) -> ChangesetRecord:
    return ChangesetRecord(
        node=f"{number:040x}", author="dana", date=1, description=f"change {number}\nmore", branch="b", files=("f",)
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    database = WorkDatabase(f"sqlite:///{tmp_path}/work.db")
    database.migrate()
    for number, url in enumerate((URL, "https://hg.example/other")):
        records = {each.node: each for each in map(a_record, range(number + 1, number + 7))}
        pushes = [
            QueuedPush(id=n + 1, date=86400 * n, user="dana", changesets=(node,)) for n, node in enumerate(records)
        ]
        database.add_changesets(list(records.values()))
        database.record(RepositoryKey(source="poll", number=number, url=url), pushes)
    database.close()
    file = tmp_path / "v.toml"
    file.write_text(
        f'[work]\nurl = "amqp://127.0.0.1"\nrepositories = ["https://hg.example/"]\nclones = "/c"\ndatabase-url = "sqlite:///{tmp_path}/work.db"\n'
    )
    return file


def run(file: Path, *words: str) -> Result:
    return CliRunner().invoke(command, ["-c", str(file), *words], catch_exceptions=False)


def test_pushes_since_a_date_are_listed_oldest_first(file: Path) -> None:
    found = json.loads(run(file, "--repository", URL, "--since", "1970-01-04", "--json").output)
    assert [(push["repository"], push["id"]) for push in found] == [(URL, 4), (URL, 5), (URL, 6)]
    assert found[0]["changesets"] == [
        {"node": f"{4:040x}", "author": "dana", "branch": "b", "description": "change 4\nmore"}
    ]


def test_parked_messages_are_listed_by_repository(file: Path, tmp_path: Path) -> None:
    database = WorkDatabase(f"sqlite:///{tmp_path}/work.db")
    parked = ParkedMessages(database, 10**6)
    body = b'{"type": "hg-push", "repository_id": 1, "pushes": []}'
    key = RepositoryKey(source="poll", number=1, url=URL)
    message = TakenMessage(tag=1, body=body, repository=key, message=from_body(body))
    [first, second] = parked.add([message, message], 86400)
    assert first.row is not None
    parked.bury(first.row, "no such repository")
    assert [each.row for each in parked.read(second.name, 10)] == [second.row]
    assert [(each.row, reason) for each, reason in parked.read_dead(10)] == [(first.row, "no such repository")]
    database.close()
    [found] = json.loads(run(file, "--parked", "--json").output)
    assert found == {"repository": URL, "messages": 2, "dead": 1, "bytes": 2 * len(body), "since": 86400}
    assert "1970-01-02 00:00:00" in run(file, "--parked").output


def test_parked_messages_that_cannot_be_read_hide_none_behind_them(file: Path, tmp_path: Path) -> None:
    database = WorkDatabase(f"sqlite:///{tmp_path}/work.db")
    parked = ParkedMessages(database, 10**6)
    body = b'{"type": "hg-push", "repository_id": 1, "pushes": []}'
    key = RepositoryKey(source="poll", number=1, url=URL)
    good = TakenMessage(tag=1, body=body, repository=key, message=from_body(body))
    kept = parked.add([*(replace(good, body=b"new") for _ in range(3)), good], 86400)
    assert [each.row for each in parked.read(good.name, 2)] == [kept[-1].row]
    dead = parked.read_dead(10)
    assert [(each.row, each.body) for each, _ in dead] == [(each.row, b"new") for each in kept[:3]]
    assert all("not JSON" in reason for _, reason in dead)
    database.close()
    [found] = json.loads(run(file, "--parked", "--json").output)
    assert (found["messages"], found["dead"]) == (4, 3)


@pytest.mark.parametrize("words", [(), ("--parked", "--repository", URL)])
def test_repository_and_parked_exclude_each_other(file: Path, words: tuple[str, ...]) -> None:
    ended = run(file, *words)
    assert ended.exit_code == 2
    assert "expected either --repository or --parked" in ended.output


def test_the_end_of_the_url_and_the_newest_are_enough(file: Path) -> None:
    found = json.loads(run(file, "--repository", "l10n/de", "--last", "2", "--json").output)
    assert [push["id"] for push in found] == [5, 6]


def test_table_has_a_line_for_each_changeset(file: Path) -> None:
    output = run(file, "--repository", "de").output
    assert "change 3" in output
    assert "more" not in output


def test_unknown_repository_is_named(file: Path) -> None:
    with pytest.raises(Refused, match="no repository nowhere is recorded"):
        run(file, "--repository", "nowhere")


def test_database_behind_its_migration_is_one_line_with_file_and_key(file: Path, tmp_path: Path) -> None:
    (tmp_path / "work.db").unlink()
    with pytest.raises(BadConfig, match=r"v\.toml: work\.database-url: .* run `vcsreplicator work --migrate`"):
        run(file, "--repository", "de")
