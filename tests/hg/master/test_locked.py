# SPDX-License-Identifier: GPL-2.0-or-later
"""A push to a repository that another process has locked for too long."""

import os
from collections.abc import Iterator

import pytest
from mercurial import lock, vfs

from testing.builders.master.pushing import Master, new_master

pytestmark = pytest.mark.processes

SENTENCE = "another process holds the lock of this repository; nothing was changed"


@pytest.fixture
def master() -> Iterator[Master]:
    with new_master() as master:
        master.configure("[ui]\ntimeout = 1\n")
        master.create("one")
        master.commit("one", "a")
        yield master


# To a client from before 2015 over HTTP Mercurial gives no reason of an Abort.
OLD = ("--config", "devel.legacy.exchange=bundle1")


@pytest.mark.parametrize(("way", "options"), [("http", ()), ("ssh", ()), ("ssh", OLD)])
def test_the_pusher_reads_that_another_process_holds_the_lock(
    master: Master, way: str, options: tuple[str, ...]
) -> None:
    store = vfs.vfs(os.fsencode(master.root / "one" / ".hg" / "store"))
    held = lock.lock(store, b"lock")
    try:
        if way == "http":
            with master.serve("one") as url:
                said = master.develop("-R", str(master.folder / "clone-one"), "push", url, *options, check=False)
        else:
            said = master.push("one", *options, check=False)
    finally:
        held.release()
    assert SENTENCE in said
    assert "push again later" in said
    assert "Internal Server Error" not in said
