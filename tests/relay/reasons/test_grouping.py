# SPDX-License-Identifier: GPL-2.0-or-later
"""Trouble of many repositories with one reason is one trouble, one log line and few attempts."""

import errno
import os
import threading
from collections import Counter
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from hgext.vcsreplicator.log.ownership import name_own_user, name_user
from hgext.vcsreplicator.relay.jobs import Job
from hgext.vcsreplicator.relay.lacking import WAITS
from hgext.vcsreplicator.relay.reasons.grouping import PERIOD, group_troubles
from hgext.vcsreplicator.relay.reasons.rights import explain
from hgext.vcsreplicator.relay.work import WAITING, Obstacle, Work, choose_delay
from hgext.vcsreplicator.status.findings import REFUSES
from hgext.vcsreplicator.words.records import ServiceTrouble
from testing.clock import HandClock
from testing.metrics import value_of
from testing.waiting import eventually


def denied(folder: str) -> PermissionError:
    return PermissionError(errno.EACCES, "Permission denied", f"{folder}/.hg/store/outbox.lock")


def waiting(folder: str, since: float = 5.0) -> ServiceTrouble:
    """The trouble of a repository that the relay may not write."""
    return ServiceTrouble(text=f"{folder}{WAITS}{explain(folder, denied(folder))}", since=since, is_permanent=True)


def test_repositories_with_one_reason_are_one_trouble_with_one_command(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    roots = [f"{tmp_path}/repos"]
    troubles = [waiting(f"{roots[0]}/team/{number:03}", 9.0 - number) for number in range(200)]
    [trouble] = group_troubles(troubles, roots)
    top = f"{roots[0]}/team"
    assert trouble.text == (
        f"{top}: 200 repositories (000, 001, 002 and 197 more), each: events wait in its outbox: "
        f"Permission denied: {top}/000/.hg/store/outbox.lock; as root, run: vcsreplicator rights {name_user(os.geteuid())} {top}"
    )
    assert (trouble.since, trouble.is_permanent) == (-190.0, True)
    few = [f"{top}/{number:03}" for number in range(2)]
    assert group_troubles(troubles[:2], roots)[0].text.endswith(
        f"run: vcsreplicator rights {name_user(os.geteuid())} {' '.join(few)}"
    )


def test_many_repositories_of_a_group_get_its_right(tmp_path: Path) -> None:
    tmp_path.chmod(0o2775)
    top = str(tmp_path)
    [trouble] = group_troubles([waiting(f"{top}/{number}") for number in range(9)], [top])
    assert trouble.text.endswith(f"run: vcsreplicator rights {name_own_user()} {top}")


def test_other_reasons_roots_and_refusals_keep_their_own_trouble() -> None:
    troubles = [
        *(waiting(f"/{root}/a") for root in ("one", "two")),
        ServiceTrouble(text="/one/b: its outbox cannot be read: damaged", since=1.0, is_urgent=True),
        ServiceTrouble(text="/one/c: its outbox cannot be read: damaged", since=1.0),
        *(ServiceTrouble(text=f"/one/{name}{REFUSES}a fork", since=1.0) for name in "de"),
        *(ServiceTrouble(text="repository x is not on the master any more", since=1.0) for _ in range(2)),
    ]
    assert group_troubles(troubles, ["/one", "/two"]) == troubles


class ClosedRepositories:
    """Repositories that the relay may not write while they are `closed`; counts the attempts."""

    def __init__(self, root: Path, count: int) -> None:
        self.folders = [str(root / f"{number:03}") for number in range(count)]
        self.closed, self.tries, self.failures = True, Counter[str](), 0
        self.stop, self.clock = threading.Event(), HandClock()
        self.work = Work({Job.SEND: self.send}, workers=2, stop=self.stop, clock=self.clock)
        self.work.on_trouble = self.note_failure
        for folder in self.folders:
            os.makedirs(f"{folder}/.hg")

    def note_failure(self) -> None:
        self.failures += 1

    def send(self, folder: str) -> None:
        self.tries[folder] += 1
        if self.closed:
            raise denied(folder)

    def try_all(self) -> None:
        """Have each tried once more, and wait for it."""
        before = self.failures
        for folder in self.folders:
            self.work.add(folder, Job.SEND, now=True)
        eventually(lambda: self.failures >= before + len(self.folders))

    def close(self) -> None:
        self.stop.set()
        self.work.drain(60.0)


@pytest.mark.processes
def test_many_closed_repositories_are_one_line_with_their_count(tmp_path: Path) -> None:
    closed = ClosedRepositories(tmp_path, 50)
    with capture_logs() as lines:
        closed.try_all()
        closed.try_all()
        closed.clock.advance(PERIOD)
        closed.try_all()
    closed.close()
    assert [(line["log_level"], line.get("repositories")) for line in lines] == [("error", None), ("error", 50)]
    assert lines[1]["attempts"] >= 100


@pytest.mark.processes
def test_closed_repositories_are_tried_seldom_and_after_a_success(tmp_path: Path) -> None:
    closed = ClosedRepositories(tmp_path, 20)
    closed.try_all()
    closed.closed = False
    closed.work.add(closed.folders[7], Job.SEND, now=True)
    eventually(lambda: not value_of(WAITING))
    assert set(closed.tries.values()) == {2}
    closed.close()


def test_the_more_repositories_are_closed_the_less_often_each_is_tried() -> None:
    assert choose_delay(Obstacle.DENIED, 1, 1) < 0.4
    for count, least in ((200, 40.0), (100_000, 480.0)):
        assert all(least <= choose_delay(Obstacle.DENIED, 1, count) <= 720.0 for _ in range(20))
    assert 96.0 <= choose_delay(Obstacle.DENIED, 100, 1) <= 144.0
