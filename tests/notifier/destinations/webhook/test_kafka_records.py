# SPDX-License-Identifier: GPL-2.0-or-later
"""What webhooks owe, as transactions of Kafka: one notifier writes, and what a topic refuses costs nothing else."""

from contextlib import closing
from dataclasses import replace

import pytest

from hgext.vcsreplicator.log import LARGEST, NOTIFIER, Log
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.table import read_table
from hgext.vcsreplicator.words.errors import Fenced
from notifier.clients.database import NOWHERE
from notifier.destinations.webhook.deliveries import Deliveries
from notifier.destinations.webhook.records import SETTLES_WITHIN, WebhookRecords
from notifier.destinations.webhook.subscription import Subscription
from notifier.messages.message import messages
from notifier.publishing.position import StoredPosition
from testing.builders.log.log_storage import kafka_storage
from testing.builders.notifier.notices import a_notice, an_event, with_topics
from testing.builders.notifier.notifying import PUBLIC
from testing.clock import HandClock
from testing.services.kafka import Kafka


def list_owed(log: Log) -> list[str]:
    return [key.split("/")[3] for _, key in read_table(log, NOTIFIER).records if key.startswith("owed/")]


def test_kafka_takes_what_one_notifier_owes_but_for_what_is_too_large(kafka: Kafka, unique_name: str) -> None:
    clock = HandClock()
    with open_log(kafka_storage(kafka, unique_name).url) as log, closing(Deliveries(NOWHERE)) as deliveries:
        with_topics(log)
        with closing(StoredPosition("hooks", log, clock)) as position:
            records = WebhookRecords("hooks", log, deliveries, clock)
            records.restore(position.write)
            wanted = Subscription(url="https://ci.example/")
            deliveries.subscriptions.add("ci", wanted, origin="command", who="dana", now=clock.now())
            sent = [messages(a_notice(an_event("x", seq)), seq, PUBLIC)[0] for seq in (1, 2, 3)]
            sent[1] = replace(sent[1], signed="x" * LARGEST)
            ci = deliveries.subscriptions.all()
            deliveries.enqueue([(message, ci) for message in sent], clock.now())
            clock.advance(2 * SETTLES_WITHIN)
            assert records.secure(4) == 4
            position.store(4)
            assert list_owed(log) == [sent[0].id, sent[2].id]
            with closing(StoredPosition("hooks", log, clock)):
                deliveries.enqueue([(messages(a_notice(an_event("x", 4)), 4, PUBLIC)[0], ci)], clock.now())
                clock.advance(2 * SETTLES_WITHIN)
                with pytest.raises(Fenced):
                    records.secure(5)
            assert list_owed(log) == [sent[0].id, sent[2].id]
