# SPDX-License-Identifier: GPL-2.0-or-later
"""What a round of the relay finds to do, in folders made without Mercurial."""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest

from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.outbox.entry import before_first_event
from hgext.vcsreplicator.outbox.file import SEGMENT, Fork, Outbox
from hgext.vcsreplicator.relay import rounds
from hgext.vcsreplicator.relay.jobs import Job
from hgext.vcsreplicator.relay.lacking import leave_out_sent
from hgext.vcsreplicator.relay.loss import LossWatch
from hgext.vcsreplicator.relay.port import MasterPort
from hgext.vcsreplicator.relay.reasons.grouping import group_troubles
from hgext.vcsreplicator.relay.rounds import ANNOUNCE_AFTER, SENDS_NOW, QuietRepositories, find_work
from hgext.vcsreplicator.relay.work import Failure, Work
from hgext.vcsreplicator.status import SILENT
from testing.builders.master.outboxes import Folder, Transaction, following
from testing.faults.system import System


class Everywhere:
    """A table of failures with the same one for each folder."""

    def __init__(self, failure: Failure | None) -> None:
        self._failure = failure

    def get(self, folder: str) -> Failure | None:
        return self._failure


Deny = Callable[..., None]


class Round:
    """A root; the jobs that a round starts are kept, and the log is known to have what was sent if `confirmed`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.jobs: list[tuple[str, str]] = []
        self.confirmed = True
        self.quiet = QuietRepositories()
        # The events that the log is known to have, if not any.
        self.known: list[str] | None = None
        # Interrupted acts that cannot be finished.
        self.unfinished: list[str] = []
        self.failure: Failure | None = None
        self.recovery_failure: Failure | None = None

    def make(self, now: float) -> tuple[list[tuple[str, str]], list[str]]:
        """The jobs, and what is wrong."""
        self.round(now)
        assert {*self.found.folders, *self.found.unreadable} >= {str(file.parent) for file in self.root.glob("*/.hg")}
        return sorted(self.jobs), [trouble.text.partition(": ")[2] for trouble in self.found.troubles]

    def round(self, now: float) -> None:
        self.jobs.clear()
        port, work, losses = cast(MasterPort, self), cast(Work, self), cast(LossWatch, self)
        self.found = find_work([str(self.root)], port, work, losses, now, self.quiet)
        for folder in self.found.unconfirmed:  # as the daemon does
            self.add(folder, Job.SEND)

    def finish(self, root: str) -> list[str]:
        return self.unfinished

    def is_confirmed(self, folder: str, event: str) -> bool:
        return self.confirmed and (self.known is None or event in self.known)

    def add(self, folder: str, job: Job) -> None:
        self.jobs.append((os.path.basename(folder), job.value))

    @property
    def failed(self) -> Everywhere:
        return Everywhere(self.failure)

    @property
    def unrecovered(self) -> Everywhere:
        return Everywhere(self.recovery_failure)

    def forget_failures(self, folders: Sequence[str]) -> None:
        self.remembered = folders

    def create(self, name: str, pushes: int = 0, *, sent: bool = True) -> Outbox:
        """A repository with this many events."""
        store = self.root / name / ".hg" / "store"
        store.mkdir(parents=True)
        (store.parent / "requires").write_text("store\n")
        os.utime(store.parent / "requires", (1000.0, 1000.0))
        box = Outbox(Folder(str(store)))
        if pushes:
            box.append(Transaction(), following(before_first_event(name, 1), pushes))
        if sent:
            self.mark(box)
        return box

    def mark(self, box: Outbox) -> None:
        """The log has all of it."""
        for place in list(box.unsent()):
            box.prepare_sent(place.sent())
            box.move_sent(place.sent())


@pytest.fixture
def round_(tmp_path: Path) -> Round:
    return Round(tmp_path)


def jobs(round_: Round, now: float = 1000.0) -> Sequence[tuple[str, str]]:
    return round_.make(now)[0]


def test_nothing_is_to_be_done_where_the_log_has_everything(round_: Round) -> None:
    round_.create("a", 2)
    assert round_.make(1000.0) == ([], [])


def test_a_new_repository_is_left_for_a_while_to_its_maker(round_: Round) -> None:
    round_.create("a")
    assert jobs(round_, 1000.0 + ANNOUNCE_AFTER) == []
    assert jobs(round_, 1000.5 + ANNOUNCE_AFTER) == [("a", "announce")]


def test_what_is_unsent_or_perhaps_lost_is_sent(round_: Round) -> None:
    round_.create("unsent", 1, sent=False)
    round_.create("marked", 1)
    assert jobs(round_) == [("unsent", "send")]
    round_.confirmed = False
    assert jobs(round_) == [("marked", "send"), ("unsent", "send")]
    round_.confirmed = True
    (round_.root / "marked/.hg/store/outbox.sent").unlink()
    assert jobs(round_) == [("marked", "send"), ("unsent", "send")]


@pytest.mark.parametrize("left", ["nothing", "no file", "one event"])
def test_an_outbox_that_lacks_what_was_sent_gets_no_new_history(round_: Round, left: str) -> None:
    box, file = round_.create("a", 1), round_.root / "a/.hg/store/outbox.0001.log"
    one = file.read_bytes()
    box.append(Transaction(), following(box.newest(), 1))
    round_.mark(box)
    assert round_.make(2_000_000_000.0) == ([], [])
    file.write_bytes(one if left == "one event" else b"")
    if left == "no file":
        file.unlink()
    assert round_.make(2_000_000_000.0)[0] == [("a", "send")]


def test_a_store_restored_with_its_marker_is_looked_at(round_: Round) -> None:
    box = round_.create("a", 2)
    round_.known = [box.newest().id]
    assert round_.make(2_000_000_000.0) == ([], [])
    round_.known = ["a later one"]
    assert round_.make(2_000_000_000.0)[0] == [("a", "send")]


def test_a_damaged_outbox_is_reported_though_nothing_waits(round_: Round) -> None:
    round_.create("a", 1)
    file = round_.root / "a/.hg/store/outbox.0001.log"
    file.write_bytes(file.read_bytes()[:-1])
    [told] = round_.make(2_000_000_000.0)[1]
    assert told.startswith("its outbox cannot be read: outbox.0001.log: damaged record at byte")
    assert told.endswith("or move .hg/store/outbox.* away to start a new history on all mirrors")


def test_damage_in_an_outbox_of_the_same_size_is_reported(round_: Round) -> None:
    """Each push would be refused, and the first one would be the first to show it."""
    round_.create("a", 2)
    file = round_.root / "a/.hg/store/outbox.0001.log"
    content = file.read_bytes()
    file.write_bytes(content[:-30] + b"?" + content[-29:])
    jobs, [told] = round_.make(2_000_000_000.0)
    assert jobs == []
    assert told.startswith("its outbox cannot be read: outbox.0001.log: damaged record at byte")
    file.write_bytes(content)
    assert round_.make(2_000_000_000.0) == ([], [])


def test_a_transaction_that_may_be_abandoned_is_recovered(round_: Round) -> None:
    round_.create("a", 1, sent=False)
    (round_.root / "a/.hg/store/journal").touch()
    assert jobs(round_) == [("a", "recover"), ("a", "send")]


def test_a_fork_is_reported_and_looked_at_again_though_nothing_waits(round_: Round) -> None:
    round_.create("a", 1).set_fork(Fork(reason="another history"))
    found, [text] = round_.make(1000.0)
    assert found == [("a", "send")]
    assert text.startswith("refuses pushes: another history")


def test_a_deleted_repository_goes_once_the_log_has_all_of_it(round_: Round) -> None:
    deleted = round_.root / ".vcsreplicator" / "deleted"
    (deleted / ".move-probe").mkdir(parents=True)
    (deleted / "rest").mkdir()
    box = round_.create(".vcsreplicator/deleted/a", 1, sent=False)
    assert jobs(round_) == [("a", "send")]
    assert sorted(os.listdir(deleted)) == [".move-probe", "a"]
    round_.mark(box)
    assert jobs(round_) == []
    assert os.listdir(deleted) == [".move-probe"]


def test_a_deleted_repository_that_the_disk_hides_is_sent_later(round_: Round) -> None:
    """A transient error is not taken for the rest of an interrupted removal."""
    control = round_.root / ".vcsreplicator" / "deleted" / "a" / ".hg"
    round_.create(".vcsreplicator/deleted/a", 1, sent=False)
    (control / "store").rename(control / "hidden")
    (control / "store").symlink_to("store")  # who looks gets ELOOP
    [text] = round_.make(1000.0)[1]
    assert text.startswith("cannot be read: ")
    assert round_.jobs == []
    (control / "store").unlink()
    (control / "hidden").rename(control / "store")
    assert jobs(round_) == [("a", "send")]


# Bytes of a file that take no room on the disk, and that no machine has memory for.
ENDLESS = 1 << 42


def leave_endless(file: Path) -> None:
    with open(file, "wb") as opened:
        opened.truncate(ENDLESS)


def leave_journal_without_size(folder: Path) -> None:
    segment = SEGMENT.format(1)
    (folder / ".hg/store/journal").write_text(f"{segment}\0none\n")
    with open(folder / ".hg/store" / segment, "ab") as opened:
        opened.write(b"x")


SPOILT = {
    "requires": lambda folder: leave_endless(folder / ".hg/requires"),
    "journal": lambda folder: leave_endless(folder / ".hg/store/journal"),
    "size": leave_journal_without_size,
}


@pytest.mark.parametrize("how", SPOILT)
@pytest.mark.parametrize("place", ["", ".vcsreplicator/deleted"])
def test_no_repository_of_an_account_ends_the_round_of_the_others(round_: Round, place: str, how: str) -> None:
    round_.create(f"{place}/spoilt".lstrip("/"), 2)
    SPOILT[how](round_.root / place / "spoilt")
    round_.create("sound", 1, sent=False)
    assert ("sound", "send") in jobs(round_)


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (None, f"events wait in its outbox: {SENDS_NOW}"),
        ("blobs: /blobs: Permission denied", "events wait in its outbox: blobs: /blobs: Permission denied"),
    ],
)
def test_waiting_events_are_reported_with_the_reason_of_the_last_attempt(
    tmp_path: Path, failure: str | None, told: str
) -> None:
    made = Round(tmp_path)
    made.create("a", 1, sent=False)
    made.failure = Failure(Job.SEND, failure, 1000.0) if failure else None
    assert made.make(2_000_000_000.0)[1] == [told]


def test_events_whose_sending_fails_are_reported_and_become_urgent(round_: Round) -> None:
    event = next(round_.create("a", 1, sent=False).unsent()).entry.event
    round_.failure = Failure(Job.SEND, "another process sends its events", event.time, is_busy=True)
    assert round_.make(event.time + 1)[1] == [], "it may take a moment"
    round_.failure = Failure(Job.SEND, "Permission denied: outbox.sent", event.time, is_permanent=True)
    assert round_.make(event.time + 1)[1] == ["events wait in its outbox: Permission denied: outbox.sent"]
    [trouble] = round_.found.troubles
    assert (trouble.is_urgent, trouble.is_permanent, trouble.since) == (False, True, event.time)
    round_.make(event.time + 1 + SILENT)
    [trouble] = round_.found.troubles
    assert (trouble.is_urgent, trouble.is_permanent, trouble.since) == (True, True, event.time)


@pytest.mark.parametrize("job", [Job.ANNOUNCE, Job.RECOVER])
def test_a_job_that_fails_is_reported_at_once_and_urgent_after_a_while(round_: Round, job: Job) -> None:
    round_.create("a")
    (round_.root / "a/.hg/store/journal").touch()
    failure = Failure(job, "Permission denied: lock", 2000.0, is_permanent=True)
    round_.failure, round_.recovery_failure = (failure, None) if job is Job.ANNOUNCE else (None, failure)
    for now, is_urgent in ((2000.0, False), (2001.0 + SILENT, True)):
        round_.make(now)
        [trouble] = round_.found.troubles
        assert (trouble.is_urgent, trouble.is_permanent, trouble.since) == (is_urgent, True, 2000.0)


def test_a_clock_set_back_hides_no_waiting_event_and_no_failing_job(round_: Round) -> None:
    event = next(round_.create("a", 1, sent=False).unsent()).entry.event
    assert round_.make(event.time - SILENT)[1] == []
    assert round_.make(event.time - 86400)[1] == [f"events wait in its outbox: {SENDS_NOW}"]
    assert round_.found.troubles[0].since == event.time - 86400
    round_.create("b")
    round_.failure = Failure(Job.ANNOUNCE, "no mirror can have this name", event.time)
    assert "has no first event: no mirror can have this name" in round_.make(event.time - 86400)[1]


def test_a_repository_from_the_future_is_announced(round_: Round) -> None:
    round_.create("a")
    assert jobs(round_, 1000.0 - 2 * ANNOUNCE_AFTER) == [("a", "announce")]


def test_a_transaction_and_events_that_wait_have_reasons_of_their_own(
    round_: Round,
) -> None:
    """Events are sent behind the transaction, so neither is the reason of the other."""
    round_.create("a", 1, sent=False)
    (round_.root / "a/.hg/store/journal").touch()
    round_.recovery_failure = Failure(Job.RECOVER, "Permission denied: journal", 1000.0)
    stuck = "its transaction is not rolled back: Permission denied: journal"
    assert round_.make(2_000_000_000.0)[1] == [f"events wait in its outbox: {SENDS_NOW}", stuck]
    round_.failure = Failure(Job.SEND, "Permission denied: outbox.sent", 1000.0)
    assert round_.make(2_000_000_000.0)[1] == ["events wait in its outbox: Permission denied: outbox.sent", stuck]


def test_a_trouble_of_waiting_events_ends_alone_once_all_are_sent(round_: Round) -> None:
    sent, partly, untried = (round_.create(name, 2, sent=False) for name in ("sent", "partly", "untried"))
    round_.create("forked", 1).set_fork(Fork(reason="another history"))
    round_.make(2_000_000_000.0)
    round_.mark(sent)
    first = next(partly.unsent()).sent()
    partly.prepare_sent(first)
    partly.move_sent(first)
    names = [f"{round_.root}/{name}" for name in ("sent", "partly", "untried", "forked")]
    kept, waiting = leave_out_sent(round_.found.troubles, [name for name in names if not name.endswith("untried")])
    assert sorted(trouble.text.partition(":")[0] for trouble in kept) == sorted(names[1:])
    assert waiting == {names[1]}
    round_.mark(untried)
    assert leave_out_sent(kept, []) == (kept, set())


def test_a_repository_that_cannot_get_its_first_event_is_reported(round_: Round) -> None:
    round_.create("a")
    round_.failure = Failure(Job.ANNOUNCE, "another process holds its lock", 2000.0, is_busy=True)
    assert round_.make(2000.0 + SILENT) == ([("a", "announce")], [])
    assert round_.make(2001.0 + SILENT)[1] == ["has no first event: another process holds its lock"]
    assert not round_.found.troubles[0].is_urgent, "an operation may take long"
    round_.failure = Failure(Job.ANNOUNCE, "no mirror can have this name", 2000.0)
    round_.make(2001.0 + SILENT)
    assert round_.found.troubles[0].is_urgent


@pytest.mark.parametrize("confirmed", [True, False], ids=["confirmed", "after a start"])
def test_a_transaction_that_cannot_be_rolled_back_is_reported_later(round_: Round, confirmed: bool) -> None:
    round_.create("a", 1)
    round_.confirmed = confirmed
    (round_.root / "a/.hg/store/journal").touch()
    round_.recovery_failure = Failure(Job.RECOVER, "Permission denied: lock", 1000.0)
    assert round_.make(1001.0 + SILENT)[1] == ["its transaction is not rolled back: Permission denied: lock"]
    round_.recovery_failure, round_.failure = None, Failure(Job.SEND, "another process sends its events", 1000.0)
    assert round_.make(1001.0 + SILENT)[1] == []


def test_an_act_that_cannot_be_finished_is_reported(round_: Round) -> None:
    round_.unfinished = ["/repos/a: strip not finished: Permission denied"]
    assert round_.make(1000.0)[1] == ["strip not finished: Permission denied"]


@pytest.fixture
def deny(monkeypatch: pytest.MonkeyPatch) -> Deny:
    """Has the search find these repositories, and then what the relay may not read; root, who may run this test, may read all."""

    def begin(*denied: str, found: Sequence[str] = ()) -> None:
        def find(root: str, on_unreadable: Callable[[OSError], object], **_: object) -> Iterator[str]:
            yield from (f"{root}/{name}" for name in found)
            for name in denied:
                on_unreadable(PermissionError(errno.EACCES, "Permission denied", f"{root}/{name}".rstrip("/")))

        monkeypatch.setattr(rounds, "find_repositories", find)

    return begin


def test_what_the_relay_may_not_read_may_be_a_repository(round_: Round, deny: Deny) -> None:
    deny("a/.hg", "group", "lost+found", ".snapshot", ".move-x1")
    [text, other] = round_.make(1000.0)[1]
    assert text.startswith(
        f"cannot be read: Permission denied: {round_.root}/a/.hg; as root, run: vcsreplicator rights "
    )
    assert f" {round_.root}/a" in text
    denied = f"Permission denied: {round_.root}/group"
    assert other.startswith(f"cannot be read: {denied}; if it holds repositories, as root, run: vcsreplicator rights ")
    assert not any(trouble.is_urgent for trouble in round_.found.troubles), "a glance may fail"
    assert {f"{round_.root}/a", f"{round_.root}/group"} <= set(round_.found.unreadable)


def test_a_repository_closed_to_the_relay_is_reported_in_each_round(round_: Round, deny: Deny) -> None:
    deny("a/.hg/requires")
    round_.failure = Failure(Job.SEND, "Permission denied", 900.0, is_permanent=True)
    for now, is_urgent in ((930.0, False), (961.0, True)):
        [text] = round_.make(now)[1]
        assert text.startswith(
            f"cannot be read: Permission denied: {round_.root}/a/.hg/requires; as root, run: vcsreplicator rights "
        )
        [trouble] = round_.found.troubles
        assert (trouble.is_urgent, trouble.is_permanent, trouble.since) == (is_urgent, True, 900.0)
        assert f"{round_.root}/a" in round_.remembered


def test_repositories_closed_to_the_group_are_reported_with_one_command(round_: Round) -> None:
    for name in ("a", "b", "open"):
        round_.create(name, 1)
        store = f"{round_.root}/{name}/.hg/store"
        os.chmod(store, 0o775 if name == "open" else 0o755)
    assert round_.make(2_000_000_000.0)[1] == [], "no group may write above"
    round_.root.chmod(0o775)
    round_.make(2_000_000_000.0)
    [trouble] = group_troubles(round_.found.troubles, [str(round_.root)])
    begin = f"{round_.root}: 2 repositories (a, b), each: the group {round_.root.group()} may not write there"
    assert trouble.text.startswith(f"{begin}, so it cannot push; as root, run: vcsreplicator rights ")
    assert trouble.text.endswith(f":{round_.root.group()} {round_.root}/a {round_.root}/b")
    assert trouble.is_permanent, "check names it at once"
    program.main(trouble.text.partition("as root, run: vcsreplicator ")[2].split(), standalone_mode=False)
    assert round_.make(2_000_000_000.0)[1] == []


def test_a_root_that_is_missing_is_urgent(round_: Round) -> None:
    """It was not mounted yet, or is not any more; nothing below it is called gone."""
    round_.root = round_.root / "none"
    [text] = round_.make(1000.0)[1]
    assert text == f"cannot be read: No such file or directory: {round_.root}"
    assert round_.found.troubles[0].is_urgent
    assert round_.found.unreadable == [str(round_.root)]


def test_a_root_that_may_not_be_read_is_one_trouble_with_the_command(round_: Round, deny: Deny) -> None:
    """Its interrupted acts cannot be read for the same reason."""
    deny("")
    round_.unfinished = [f"{round_.root}: its interrupted acts cannot be read"]
    [text] = round_.make(1000.0)[1]
    assert text.startswith(f"cannot be read: Permission denied: {round_.root}; as root, run: chown ")
    assert text.endswith(f" {round_.root} && chmod u+rwx {round_.root}")
    assert "vcsreplicator rights" not in text, "below it there may be what other users own"


def test_what_cannot_be_read_inside_a_working_copy_is_no_trouble(round_: Round, deny: Deny) -> None:
    round_.create("a", 1)
    deny("a/node_modules", found=["a"])
    assert round_.make(1000.0)[1] == []


def test_a_store_that_cannot_be_read_is_reported_but_not_one_that_is_gone(round_: Round, system: System) -> None:
    round_.create("a", 1)
    round_.create("gone", 1)
    system.refuse(errno.EACCES, "os.listdir", at="*a/.hg/store")
    system.refuse(errno.ENOENT, "os.listdir", at="*gone/.hg/store")
    [text] = round_.make(1000.0)[1]
    assert text.startswith(
        f"cannot be read: Permission denied: {round_.root}/a/.hg/store; as root, run: vcsreplicator rights "
    )
    [trouble] = round_.found.troubles
    assert (trouble.is_urgent, trouble.is_permanent, trouble.since) == (False, False, 1000.0), "a glance may fail"
    round_.failure = Failure(Job.SEND, "Permission denied: store", 900.0, is_permanent=True)
    for now, is_urgent in ((960.0, False), (961.0, True)):
        assert round_.make(now)[1] == [text]
        [trouble] = round_.found.troubles
        assert (trouble.is_urgent, trouble.is_permanent, trouble.since) == (is_urgent, True, 900.0)
