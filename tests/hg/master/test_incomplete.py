# SPDX-License-Identifier: GPL-2.0-or-later
"""Pushes that lack what their changesets name: no bundle of them could be made, and every later event would wait."""

from collections.abc import Iterator

import pytest

from hgext.vcsreplicator.log import Log
from testing.builders.master.pushing import Master, events, new_master, running_relay

pytestmark = pytest.mark.processes

# A client's extension, which leaves one kind of content out of what it sends.
INCOMPLETE = """\
from mercurial import changegroup
changegroup.cgpacker.{generator} = lambda *arguments, **named: iter(())
"""


@pytest.fixture
def master(log: Log) -> Iterator[Master]:
    with new_master("acknowledge-timeout = 60") as master, running_relay(master.settings(), log):
        yield master


@pytest.mark.parametrize("left_out", ["files", "manifests"])
def test_a_push_that_lacks_what_it_names_is_refused(master: Master, log: Log, left_out: str) -> None:
    master.create("one")
    (master.folder / "incomplete.py").write_text(INCOMPLETE.format(generator=f"generate{left_out}"))
    master.commit("one", "a")
    said = master.push("one", "--config", "extensions.incomplete=incomplete.py", check=False)
    if left_out == "files":
        assert "the push lacks content that its changesets name: file@" in said
        assert "run 'hg verify' in the repository that you push from" in said
    assert "abort: " in said
    master.push("one")
    assert [event.type for event in events(log)["one"]] == ["created", "changed"]
