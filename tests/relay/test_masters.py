# SPDX-License-Identifier: GPL-2.0-or-later
"""Two masters write to one log, each below a wire prefix of its own."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from hgext.vcsreplicator.log import EVENTS, topics
from testing.builders.log.memorylog import MemoryLog
from testing.builders.master.pushing import Master, events, running_relay, short_folder
from testing.waiting import eventually

pytestmark = pytest.mark.processes

NAMES = ("left", "right")


@pytest.fixture
def masters() -> Iterator[list[Master]]:
    """Two masters, the repositories of each below its name on the wire."""
    with short_folder() as folder:
        made = []
        for name in NAMES:
            master = Master(folder / name, f"relay = {folder}/{name}/relay.sock\nacknowledge-timeout = 60").set_up()
            hgrc = master.folder / "master.hgrc"
            hgrc.write_text(hgrc.read_text().replace(f"{master.root} = .", f"{master.root} = {name}"))
            made.append(master)
        yield made


def test_relays_of_two_masters_keep_order_and_send_again_what_was_lost(
    masters: list[Master],
) -> None:
    log = MemoryLog()
    log.create(topics(partitions=1))
    with ExitStack() as relays:
        for name, master in zip(NAMES, masters, strict=True):
            settings = replace(master.settings(), source=f"hg://{name}", roots={str(master.root): name})
            relays.enter_context(running_relay(settings, log))
        for text in ("a", "b"):
            for master in masters:
                if text == "a":
                    master.create("one")
                master.commit("one", text)
                master.push("one")
        sent = events(log)
        assert sorted(sent) == ["left/one", "right/one"]
        log.lose(EVENTS, 0, 4)
        eventually(lambda: events(log) == sent)
    assert [len(chain) for chain in sent.values()] == [3, 3]
