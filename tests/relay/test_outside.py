# SPDX-License-Identifier: GPL-2.0-or-later
"""Which repositories the relay compares with their outboxes, and which it reports."""

from pathlib import Path

import pytest

from hgext.vcsreplicator.relay import outside
from hgext.vcsreplicator.relay.outside import OutsideWatch
from hgext.vcsreplicator.words.errors import Unavailable
from testing.builders.master.outboxes import PlainPort
from testing.clock import HandClock

from .test_quiet import count_calls


class Port(PlainPort):
    """Answers what the test says; keeps the repositories that it was asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[str, bool | Exception | None] = {}
        self.refusal: str | Exception | None = None
        self.asked: list[str] = []

    def is_changed_outside(self, folder: str) -> bool | None:
        self.asked.append(folder)
        answer = self.answers.get(folder, False)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def find_refusal(self, folder: str) -> str | None:
        if isinstance(self.refusal, Exception):
            raise self.refusal
        return self.refusal


@pytest.fixture
def port() -> Port:
    return Port()


def look(watch: OutsideWatch, port: Port, folders: list[str]) -> tuple[list[str], list[str]]:
    """The repositories that a round asks about, and those that it reports."""
    port.asked.clear()
    found = [trouble.text.partition(": ")[0] for trouble in watch.find(folders, 1.0)]
    return list(port.asked), found


def make_changelog(folder: Path) -> str:
    store = folder / ".hg" / "store"
    store.mkdir(parents=True)
    (store / "00changelog.i").write_bytes(b"x")
    return str(folder)


def test_an_older_pushlog_is_reported_until_its_file_is_another(port: Port, tmp_path: Path) -> None:
    watch, folder = OutsideWatch(port), make_changelog(tmp_path / "one")
    assert look(watch, port, [folder]) == ([folder], [])
    file, port.refusal = tmp_path / "one/.hg/store/pushlog.log", "it lacks push 2"
    file.write_bytes(b"older")
    for asked in ([folder], []):
        assert look(watch, port, [folder]) == (asked, [folder])
    file.write_bytes(b"newest")
    port.refusal = None
    assert look(watch, port, [folder]) == ([folder], [])


def test_lost_changesets_are_not_named_as_changes_to_announce(port: Port, tmp_path: Path) -> None:
    watch, folder = OutsideWatch(port), make_changelog(tmp_path / "one")
    port.answers[folder], port.refusal = True, "it lost changesets"
    [trouble] = watch.find([folder], 1.0)
    assert (trouble.text, trouble.is_urgent) == (f"{folder}: pushes are refused: it lost changesets", True)


def test_a_history_that_cannot_be_read_is_reported_until_it_is_mended(port: Port, tmp_path: Path) -> None:
    watch, folder = OutsideWatch(port), make_changelog(tmp_path / "one")
    file = tmp_path / "one/.hg/store/phaseroots"
    port.answers[folder], port.refusal = OSError("corrupted"), "a file of its history cannot be read"
    assert look(watch, port, [folder]) == ([folder], [folder])
    port.answers.clear()
    assert look(watch, port, [folder]) == ([folder], [folder])
    file.write_bytes(b"mended")
    port.refusal = None
    assert list(watch.find([folder], 1.0, quiet={folder})) == []


def test_a_pushlog_that_could_not_be_compared_has_its_turn_again(port: Port, tmp_path: Path) -> None:
    """A push came between the two comparisons, was refused, and left every file as it was."""
    watch, folder = OutsideWatch(port), make_changelog(tmp_path / "one")
    port.refusal = Unavailable("another process works there")
    assert look(watch, port, [folder]) == ([folder], [])
    port.refusal = "it lacks push 2"
    assert look(watch, port, [folder]) == ([folder], [folder])


def test_one_whose_files_changed_waits_for_none_that_was_never_compared(port: Port, tmp_path: Path) -> None:
    """After the start of a relay of 100,000 repositories these take hours."""
    watch, folder = OutsideWatch(port, at_once=1), make_changelog(tmp_path / "one")
    folders = [folder, "/a", "/b"]
    assert look(watch, port, folders)[0] == [folder]
    (tmp_path / "one/.hg/store/pushlog.log").write_bytes(b"older")
    assert look(watch, port, folders)[0] == ["/a", folder]


def test_histories_that_take_long_to_read_hold_up_no_round(port: Port, tmp_path: Path) -> None:
    """Accounts of the group write them."""
    clock = HandClock()

    class Slow(Port):
        def find_refusal(self, folder: str) -> str | None:
            clock.advance(outside.LONGEST * 0.6)
            return None

    slow = Slow()
    watch, folders = OutsideWatch(slow, clock.monotonic), [f"/{name}" for name in "abcde"]
    assert look(watch, slow, folders)[0] == ["/a", "/b"]
    assert look(watch, slow, folders)[0] == ["/c", "/d"]


def test_a_sound_repository_is_compared_again_once_it_has_changed(port: Port, tmp_path: Path) -> None:
    watch, folder = OutsideWatch(port), make_changelog(tmp_path / "one")
    assert look(watch, port, [folder]) == ([folder], [])
    assert look(watch, port, [folder]) == ([], [])
    (tmp_path / "one" / ".hg" / "store" / "00changelog.i").write_bytes(b"xx")
    port.answers[folder] = True
    assert look(watch, port, [folder]) == ([folder], [folder])
    assert look(watch, port, [folder]) == ([folder], [folder])
    port.answers[folder] = False
    assert look(watch, port, [folder]) == ([folder], [])
    assert look(watch, port, [folder]) == ([], [])


def test_of_a_quiet_repository_the_files_are_seen_that_its_folders_do_not_show(port: Port, tmp_path: Path) -> None:
    watch, folder = OutsideWatch(port), make_changelog(tmp_path / "one")
    assert look(watch, port, [folder]) == ([folder], [])
    calls = count_calls(lambda: list(watch.find([folder], 1.0, quiet={folder})))
    assert calls["stat"] == 2
    (tmp_path / "one" / ".hg" / "pushlog2.db").write_bytes(b"x")
    assert look(watch, port, [folder]) == ([folder], []), "it is quiet no more"
    for written in (b"xx", b"xxx"):
        (tmp_path / "one" / ".hg" / "store" / "00changelog.i").write_bytes(written)
        port.asked.clear()
        assert list(watch.find([folder], 1.0, quiet={folder})) == []
        assert port.asked == [folder]


@pytest.mark.parametrize("answer", [None, OSError("unreadable")])
def test_what_is_known_stands_while_a_repository_cannot_be_read(port: Port, answer: Exception | None) -> None:
    watch = OutsideWatch(port)
    port.answers.update({"/a": True, "/b": answer})
    assert look(watch, port, ["/a", "/b"]) == (["/a", "/b"], ["/a"])
    port.answers["/a"] = answer
    assert look(watch, port, ["/a", "/b"]) == (["/a", "/b"], ["/a"])


def test_a_round_compares_some_repositories_and_the_next_one_others(port: Port) -> None:
    watch, folders = OutsideWatch(port, at_once=2), ["/a", "/b", "/c", "/d"]
    port.answers["/d"] = True
    assert look(watch, port, folders) == (["/a", "/b"], [])
    assert look(watch, port, folders) == (["/c", "/d"], ["/d"])
    assert look(watch, port, folders) == (["/d"], ["/d"])
    assert look(watch, port, folders[:3]) == ([], [])


def test_repositories_that_cannot_be_compared_keep_no_other_from_its_turn(port: Port) -> None:
    watch, folders = OutsideWatch(port, at_once=2), ["/a", "/b", "/c", "/d"]
    port.answers.update({"/a": OSError("unreadable"), "/b": None, "/c": True, "/d": True})
    assert look(watch, port, folders) == (["/a", "/b"], [])
    assert look(watch, port, folders) == (["/c", "/d"], ["/c", "/d"])
    assert look(watch, port, folders)[1] == ["/c", "/d"]


def test_repositories_that_were_changed_keep_no_other_from_its_turn(port: Port) -> None:
    watch, folders = OutsideWatch(port, at_once=2), ["/a", "/b", "/c"]
    port.answers.update(dict.fromkeys(folders, True))
    assert look(watch, port, folders) == (["/a", "/b"], ["/a", "/b"])
    assert sorted(look(watch, port, folders)[1]) == folders
    port.answers["/a"] = False
    look(watch, port, folders)
    assert sorted(look(watch, port, folders)[1]) == ["/b", "/c"]
