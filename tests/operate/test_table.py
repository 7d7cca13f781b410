# SPDX-License-Identifier: GPL-2.0-or-later
"""Every entry of the runbook, and every line that a pusher reads, has a test that provokes it."""

import re

import pytest

from testing.services.cache import CHECKOUT

from .page import entries
from .submitting import PROVOCATIONS

# Entries that need more than a cluster: a test elsewhere provokes them. It does not type the commands of the page.
ELSEWHERE = {
    "VcsreplicatorBrokerBlocked": "test_broker_that_blocks_publishers_is_named_once_holds_up_no_stop_and_gets_every_push",
    "VcsreplicatorMessagesNotRouted": "test_mandatory_refuses_what_no_queue_gets",
    "VcsreplicatorEdgeSetAside": "test_a_queued_message_that_the_log_refuses_is_set_aside",
    "VcsreplicatorRepeatsPass": "test_a_file_of_ids_that_is_lost_while_it_is_used_does_not_stop_the_decoder",
    "VcsreplicatorPollFails": "test_broken_repository_holds_up_no_other",
    "VcsreplicatorPolledRepositoryReplaced": "test_replaced_repository_is_followed_as_a_new_one_if_that_is_set",
    "VcsreplicatorDeadLetters": "test_message_that_fails_is_tried_as_often_as_is_set_and_kept_with_its_reason",
    "VcsreplicatorGuardianLate": "test_a_broker_that_goes_away_is_one_line_and_retried",
    "VcsreplicatorGuardianMails": "test_mails_wait_for_a_mail_server_that_is_away",
    "alarm events of a newer version": "test_events_of_a_newer_version_raise_an_alarm",
    "alarm decisions failed": "test_a_repository_whose_decisions_fail_stands_still_and_nothing_of_it_is_announced_and_others_go_on",
    "alarm successor waits": "test_a_successor_of_a_repository_that_no_mirror_gates_is_named_and_goes_when_the_operator_says_so",
    "alarm mirror of an older release": "test_the_present_release_goes_on_where_the_former_stopped",
    "reason crashed": "test_a_repository_whose_worker_died_twice_is_detached",
    "reason blob-missing": "test_a_bundle_that_is_only_on_the_master_is_fetched",
    "reason expired": "test_positions_that_expired_are_passed_and_what_was_lost_is_looked_for",
    "reason fork": "test_two_histories_in_the_log_stay_detached_until_a_heal_request",
    "reason unknown-version": "test_an_event_of_an_unknown_version_waits_apart_for_the_upgrade",
    "reason bootstrap": "test_every_repository_is_copied_whole_and_the_mirror_joins_and_goes_on",
    "reason refused": "test_of_two_paths_with_one_folder_the_second_is_refused",
    "reason disk": "test_a_full_disk_sets_one_repository_apart_until_there_is_room",
}


# Their texts in the tests are shorter.
SHORTER = {
    "this change is too large for one event: N heads, N bookmarks, N markers": "too large for one event",
    "the push is kept and is not sent: the log has its event 12 …": "the push is kept and is not sent: the log has",
    "an interrupted strip is being finished": "is being finished",
}
# Lines without a test: a process must die in a transaction while another one has the repository open; the log must lose events that
# the outbox keeps no more, and a push must send by itself.
UNPROVOKED = {
    "abandoned transaction found; running recover",
    "the replication log lost events 3 to 7, which are kept no more: …",
}


def test_every_entry_is_provoked() -> None:
    # The alert of the aggregator's alarms is a table, each row an entry.
    assert entries().keys() - {"VcsreplicatorAggregatorAlarm"} == PROVOCATIONS.keys() | ELSEWHERE.keys()
    assert not PROVOCATIONS.keys() & ELSEWHERE.keys(), "what is provoked here needs no other test"


def test_the_tests_elsewhere_are_there() -> None:
    texts = [path.read_text() for path in (CHECKOUT / "tests").rglob("test_*.py")]
    assert [name for name in ELSEWHERE.values() if not any(f"\ndef {name}(" in text for text in texts)] == []


def lines_for_pushers() -> list[str]:
    """The first column of the table of what a pusher reads."""
    _, _, rest = (CHECKOUT / "docs/push.md").read_text().partition("## What the pusher reads\n")
    return re.findall(r"^\| `(.+?)` \| ", rest.partition("\n## ")[0], re.MULTILINE)


def fixed_part(line: str) -> str:
    """The longest part of a line that is the same every time."""
    parts = re.split(r"…|\b[NHA-Z]{1,}[A-Z]*\b|\b\d[\d.]*s?\b|\b[ab]\b|outbox\.\d+\.log|PROJ|/proj|HASH\.json", line)
    return max((part.strip(" ,:()/") for part in parts), key=len)


@pytest.mark.parametrize("line", lines_for_pushers())
def test_every_line_that_a_pusher_reads_is_provoked(line: str) -> None:
    part = SHORTER.get(line) or fixed_part(line)
    assert len(part) >= 8
    tests = [
        path
        for path in (CHECKOUT / "tests").rglob("*")
        if path.suffix in (".t", ".py") and path.name != "test_table.py"
    ]
    is_provoked = any(part in path.read_text(errors="replace") for path in tests)
    assert is_provoked == (line not in UNPROVOKED), part
