# SPDX-License-Identifier: GPL-2.0-or-later
"""Pushes while Kafka has trouble: what the pusher hears is true, nothing is lost, and order is kept once Kafka is well."""

import os
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from hgext.vcsreplicator.log import topics
from hgext.vcsreplicator.log.opening import open_log
from testing.builders.master.pushing import KEPT, RECORDED, events, new_master, running_relay
from testing.faults.delay import BehindProxy, DelayingProxy
from testing.services.kafka import Kafka
from testing.waiting import eventually

pytestmark = pytest.mark.processes


@pytest.fixture
def master():
    with new_master("acknowledge-timeout = 3") as master:
        yield master


def patience(master, seconds):
    master.configure(f"[vcsreplicator]\nacknowledge-timeout = {seconds}\n")


def test_pushes_outlast_a_broker_that_hangs_or_is_gone(master, own_service):
    kafka = own_service(Kafka)
    with open_log(f"{kafka.url}?topic-prefix=push-") as log:
        log.create(topics(partitions=4))
        with running_relay(master.settings(), log):
            patience(master, 60)
            master.create("one")
            master.commit("one", "a")
            assert RECORDED in master.push("one")
            for begin, end, kept, recorded in (
                (kafka.pause, kafka.resume, "bc", "d"),
                (kafka.kill, kafka.start, "ef", "g"),
            ):
                begin()
                patience(master, 1)
                for text in kept:
                    master.commit("one", text)
                    assert KEPT in master.push("one")
                end()
                patience(master, 120)
                master.commit("one", recorded)
                assert RECORDED in master.push("one")
        assert [event.seq for event in events(log)["one"]] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_pushes_wait_for_a_missing_topic_without_loss(master, kafka, unique_name):
    with open_log(f"{kafka.url}?topic-prefix={unique_name}-") as log:
        with running_relay(master.settings(), log):
            patience(master, 1)
            master.create("one")
            master.commit("one", "a")
            assert KEPT in master.push("one")
            log.create(topics(partitions=4))
            patience(master, 120)
            master.commit("one", "b")
            assert RECORDED in master.push("one")
        assert [event.seq for event in events(log)["one"]] == [1, 2, 3]


# Its broker has an address of its own, so it starts for this test; `test_daemon.py` and `test_server.py` wait without one.
@pytest.mark.slow
def test_pushers_wait_for_a_slow_broker_and_hear_that_it_has_their_pushes(master, own_service):
    with DelayingProxy(delay=0.0) as proxy:
        kafka = own_service(lambda: BehindProxy(proxy))
        with open_log(f"{kafka.url}?topic-prefix=push-") as log:
            log.create(topics(partitions=4))
            with running_relay(master.settings(), log), ThreadPoolExecutor(1) as developer:
                patience(master, 60)
                master.create("one")
                proxy.delay = 0.2
                for text in "ab":
                    master.commit("one", text)
                    assert RECORDED in master.push("one")
                proxy.delay = 0.0
                assert [event.seq for event in events(log, repeats=True)["one"]] == [1, 2, 3]
                master.commit("one", "c")
                proxy.answers.clear()
                pushing = developer.submit(master.push, "one")
                eventually(lambda: master.outbox("one").has_unsent())
                wait([pushing], 0.5)
                assert not pushing.done(), "it waits for the broker"
                proxy.answers.set()
                assert RECORDED in pushing.result()
                patience(master, 0.05)
                master.commit("one", "d")
                proxy.answers.clear()
                assert KEPT in master.push("one")
                proxy.answers.set()
                eventually(lambda: not master.outbox("one").has_unsent())
            assert [event.seq for event in events(log)["one"]] == [1, 2, 3, 4, 5]


def test_a_record_too_large_for_the_broker_goes_without_its_bundle(master, kafka, unique_name):
    with open_log(f"{kafka.url}?topic-prefix={unique_name}-") as log:
        log.create(topics(partitions=4))
        kafka.set_largest(f"{unique_name}-events", 100_000)
        with running_relay(master.settings(), log):
            patience(master, 60)
            master.create("one")
            (master.folder / "clone-one/large").write_bytes(os.urandom(200_000))
            master.commit("one", "a")
            assert RECORDED in master.push("one")
            master.commit("one", "b")
            assert RECORDED in master.push("one")
        assert [event.seq for event in events(log)["one"]] == [1, 2, 3]


def test_events_that_wait_together_keep_their_order(master, kafka, unique_name):
    with open_log(f"{kafka.url}?topic-prefix={unique_name}-") as log:
        log.create(topics(partitions=1))
        kafka.set_largest(f"{unique_name}-events", 100_000)
        patience(master, 0.1)
        master.create("one")
        master.create("two")
        for name, size in (("small", 20_000), ("large", 200_000), ("later", 20_000)):
            (master.folder / "clone-one" / name).write_bytes(os.urandom(size))
            master.commit("one", name)
            assert "the push is kept and will be sent" in master.push("one")
        with running_relay(master.settings(), log):
            patience(master, 60)
            master.commit("two", "a")
            assert RECORDED in master.push("two")
            master.commit("one", "last")
            assert RECORDED in master.push("one")
        assert [event.seq for event in events(log)["one"]] == [1, 2, 3, 4, 5]


def test_a_push_without_a_relay_sends_to_kafka_itself(master, kafka, unique_name):
    url = f"{kafka.url}?topic-prefix={unique_name}-"
    with open_log(url, creates=True) as log:
        log.create(topics(partitions=4))
        (master.folder / "master.hgrc").write_text(
            (master.folder / "master.hgrc").read_text().replace(f"relay = {master.socket}", f"log = {url}")
        )
        patience(master, 60)
        master.create("one")
        (master.folder / "clone-one/big").write_bytes(os.urandom(2_000_000))
        master.commit("one", "a")
        assert RECORDED in master.push("one")
        assert [event.seq for event in events(log)["one"]] == [1, 2]
