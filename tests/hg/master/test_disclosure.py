# SPDX-License-Identifier: GPL-2.0-or-later
"""What messages name of changes to secret changesets: a repository, its events, and the messages of them."""

from collections.abc import Iterator

import pytest

from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.errors import MalformedEvent
from hgext.vcsreplicator.words.event import DISCLOSED, Event
from hgext.vcsreplicator.words.records import Notice
from hgext.vcsreplicator.words.value import replace
from notifier.messages.message import Json, messages
from testing.builders.master.pushing import Master, new_master
from testing.builders.notifier.notices import a_notice
from testing.builders.notifier.notifying import PUBLIC

pytestmark = pytest.mark.processes


class Server:
    """A repository on a master, to which a developer pushes and on which an operator works."""

    def __init__(self, master: Master) -> None:
        self.master, self.path, self.clone = master, str(master.root / "one"), str(master.folder / "clone-one")
        master.configure("[phases]\npublish = no\n")
        master.create("one")
        self.push("first")
        self.develop("phase", "--public", "tip")

    def operate(self, *words: str) -> str:
        return self.master.operate("-R", self.path, *words)

    def develop(self, *words: str) -> str:
        return self.master.develop("-R", self.clone, *words)

    def commit(self, text: str, *options: str) -> str:
        """A changeset of the developer; its node."""
        (self.master.folder / "clone-one" / "file").write_text(text)
        self.develop("commit", "-q", "-A", "-m", text, *options)
        return self.develop("log", "-r", ".", "-T", "{node}")

    def push(self, *texts: str) -> list[str]:
        """Pushes changesets on top of each other; their nodes."""
        nodes = [self.commit(text) for text in texts]
        self.master.push("one", "--force")
        return nodes

    def restore(self) -> None:
        """The operator unbundles what the clone has beside the first changeset, with its phases."""
        bundle = str(self.master.folder / "bundle")
        phases = ("--config", "experimental.bundle-phases=yes")
        self.develop("bundle", "-q", "--base", "0", "-r", "head()", bundle, "--type", "zstd-v2", *phases)
        self.operate("unbundle", bundle)

    def hide(self, node: str) -> None:
        self.operate("phase", "--force", "--secret", node)

    @property
    def event(self) -> Event:
        """The newest event, as a reader of the log gets it."""
        return wire.decode(wire.encode(list(self.master.outbox("one").kept())[-1].entry.event)).event

    @property
    def told(self) -> dict[str, Json]:
        """The messages of the newest event, by type."""
        notice: Notice = a_notice(self.event)
        return {message.type.value: message.data for message in messages(notice, 0, PUBLIC)}


@pytest.fixture
def server() -> Iterator[Server]:
    with new_master("acknowledge = outbox") as master:
        yield Server(master)


def test_a_secret_changeset_is_in_no_message(server: Server) -> None:
    secret = server.commit("secret", "--secret")
    server.restore()
    assert server.event.changes.heads_added == (secret,)
    assert server.told == {}


def test_a_bookmark_among_secret_changesets_is_in_no_message(server: Server) -> None:
    withdrawn, child = server.push("withdrawn", "its child")
    server.hide(withdrawn)
    for words in (("--rev", withdrawn, "security-fix"), ("--rev", child, "security-fix"), ("--delete", "security-fix")):
        server.operate("bookmark", "--force", *words)
        assert [bookmark.name for bookmark in server.event.changes.bookmarks] == ["security-fix"]
        assert server.told == {}


def test_a_bookmark_that_goes_to_a_secret_changeset_is_gone(server: Server) -> None:
    seen, withdrawn = server.push("seen", "withdrawn")
    server.hide(withdrawn)
    for node, told in ((seen, seen), (withdrawn, None), (seen, seen)):
        server.operate("bookmark", "--force", "--rev", node, "here")
        assert server.told["bookmark.1"]["bookmarks"] == [{"name": "here", "node": told}]


def test_what_clients_saw_is_named_when_it_becomes_secret_and_appears(server: Server) -> None:
    [seen] = server.push("seen")
    server.hide(seen)
    assert server.told["phase.1"]["phases"] == [{"phase": "secret", "heads": [seen]}]
    server.operate("phase", "--draft", seen)
    assert server.told["phase.1"]["phases"] == [{"phase": "draft", "heads": [seen]}]


def test_phases_are_told_by_roots_on_the_way_up_and_heads_down(server: Server) -> None:
    root, head = server.push("root", "head")
    server.hide(root)
    assert server.told["phase.1"]["phases"] == [{"phase": "secret", "heads": [root]}]
    server.operate("phase", "--draft", head)
    assert server.told["phase.1"]["phases"] == [{"phase": "draft", "heads": [head]}]


def test_a_push_that_brings_a_withdrawn_changeset_shows_it_again(server: Server) -> None:
    """As Mercurial does it without this extension: a client that has the changeset sends it again."""
    [withdrawn] = server.push("withdrawn")
    server.hide(withdrawn)
    [child] = server.push("its child")
    assert server.operate("log", "-r", withdrawn, "-T", "{phase}") == "draft"
    assert server.told["changegroup.1"]["heads"] == [child]
    assert server.told["phase.1"]["phases"] == [{"phase": "draft", "heads": [child]}]


def test_heads_are_those_of_what_is_not_secret(server: Server) -> None:
    base = server.develop("log", "-r", ".", "-T", "{node}")
    seen = server.commit("seen")
    secret = server.commit("secret on it", "--secret")
    server.develop("update", "-q", base)
    other = server.commit("seen beside them")
    server.restore()
    assert server.event.changes.heads_added == (secret, other)
    assert server.told["changegroup.1"]["heads"] == [seen, other]
    assert secret not in str(server.told)


@pytest.mark.parametrize(
    "wrong",
    ["", "{}", "[]", '{"heads":["x"],"phases":[],"bookmarks":[]}', '{"heads":1,"phases":[],"bookmarks":[]}', "\ud800"],
)
def test_a_disclosure_that_is_none_makes_the_event_malformed(server: Server, wrong: str) -> None:
    event = replace(server.event, detail={DISCLOSED: wrong})
    with pytest.raises(MalformedEvent):
        wire.decode(wire.encode(event))
