# SPDX-License-Identifier: GPL-2.0-or-later
"""`guardian watch` killed at its lines: a mail comes twice at most, and no deletion is without one."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from notifier.services.guardian.settings import GuardianSettings
from testing.builders.notifier.mailbox import Mailbox
from testing.faults import PythonSteps, first_visits
from testing.waiting import eventually
from testing.warm import warm_starts
from tests.notifier.services.guardian.conftest import Guarded
from tests.notifier.services.guardian.test_commands import guardian, written

pytestmark = [pytest.mark.processes, pytest.mark.hunt]


def test_killed_at_a_few_lines_a_deletion_is_mailed_once_or_twice(
    guarded: Guarded, settings: GuardianSettings, mailbox: Mailbox, tmp_path: Path
) -> None:
    kill_watches(guarded, settings, mailbox, tmp_path, every=40)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_at_each_line_a_deletion_is_mailed_once_or_twice(
    guarded: Guarded, settings: GuardianSettings, mailbox: Mailbox, tmp_path: Path
) -> None:
    kill_watches(guarded, settings, mailbox, tmp_path, every=1)


def kill_watches(guarded: Guarded, settings: GuardianSettings, mailbox: Mailbox, folder: Path, *, every: int) -> None:
    """In each round a queue is beyond its limit; the watch is killed at another line, and run again."""
    file, me = written(folder, settings, 'delete = "yes"\n'), guarded.add("alice", "alice@owners.example")
    files = ("guardian/watching.py", "guardian/state.py", "guardian/mail.py", "guardian/broker.py")
    steps = PythonSteps(files=files, argument="watch", record=folder / "steps")
    vhost, made = guarded.settings.vhost, []

    def watch(environment: Mapping[str, str]) -> None:
        with warm_starts():
            subprocess.run(guardian(file, "watch", "--once"), env=environment, capture_output=True, check=False)

    def watch_new_queue(environment: Mapping[str, str]) -> None:
        made.append(guarded.queue(me, f"q{len(made)}", messages=9))
        eventually(lambda: (guarded.management.get("queues", vhost, made[-1]) or {}).get("messages") == 9)
        watch(environment)

    for point in first_visits(steps.taken(watch_new_queue))[::every]:
        steps.taken(watch_new_queue, kill_at=point)
        watch(os.environ)
        assert guarded.management.get("queues", vhost, made[-1]) is None
        mails = [mail for mail in mailbox.mails if f"{made[-1]}: " in mail.get_content()]
        assert 1 <= len(mails) <= 2, steps.record.read_text().splitlines()[-1]
        assert not Path(settings.state).exists(), "a guardian on another machine would not have it"
    assert len(made) > 3
