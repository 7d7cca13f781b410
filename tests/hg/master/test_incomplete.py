# SPDX-License-Identifier: GPL-2.0-or-later
"""Pushes that lack what their changesets name: no bundle of them could be made, and every later event would wait."""

import contextlib
import urllib.error
from collections.abc import Iterator

import pytest

from hgext.vcsreplicator.log import Log
from testing.builders.master.changegroups import NULL, Revision, changeset, manifest, push
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


ONE = Revision(text=b"one")
TWO = Revision(text=b"two", parent=ONE.node)
ENTRY = (b"file", ONE.node, b"")
UNUSED = manifest((b"other", ONE.node, b""))
LATER = manifest(ENTRY, parent=UNUSED.node)
CRAFTED = {
    "a file without a version": (manifest(ENTRY), (b"file", b"no"), [], [ONE], "no: no version"),
    "a file without a node": (manifest(ENTRY, (b"no", NULL, b"")), (b"file",), [], [ONE], f"no@{NULL.hex()}: no node"),
    "a file's parent in no changeset": (
        manifest((b"file", TWO.node, b"")),
        (b"file",),
        [],
        [ONE, TWO],
        f"file@{ONE.node.hex()}: in no",
    ),
    "a manifest's parent in no changeset": (
        LATER,
        (b"file",),
        [UNUSED],
        [ONE],
        f"00manifest@{UNUSED.node.hex()}: in no",
    ),
    "a file that its changeset does not name": (manifest(ENTRY), (), [], [ONE], f"file@{ONE.node.hex()}: in no"),
    "a folder": (manifest(ENTRY, (b"no", ONE.node, b"t")), (b"file",), [], [ONE], "would use tree manifests"),
}


@pytest.mark.parametrize("what", CRAFTED)
def test_a_push_of_which_mirrors_could_not_get_all_is_refused(master: Master, log: Log, what: str) -> None:
    named, changed, before, versions, reason = CRAFTED[what]
    master.create("one")
    with master.serve("one") as address:
        said = push(address, changeset(named, *changed), [*before, named], {b"file": versions})
        assert reason in said
    master.commit("one", "a")
    master.push("one")
    assert [event.type for event in events(log)["one"]] == ["created", "changed"]


def test_a_crafted_push_of_which_mirrors_get_all_is_accepted(master: Master, log: Log) -> None:
    master.create("one")
    with master.serve("one") as address:
        push(address, changeset(manifest(ENTRY), b"file"), [manifest(ENTRY)], {b"file": [ONE]})
    assert [event.type for event in events(log)["one"]] == ["created", "changed"]


def test_content_that_is_linked_to_another_changeset_is_accepted(master: Master, log: Log) -> None:
    """`hg verify` warns of it in some old repositories."""
    master.create("one")
    begins, goes_on = manifest(ENTRY), manifest((b"file", TWO.node, b""), parent=manifest(ENTRY).node)
    first = changeset(begins, b"file")
    second = changeset(goes_on, b"file", parent=first.node)
    with master.serve("one") as address:
        said = push(address, second, [begins, goes_on], {b"file": [ONE, TWO]}, before=[first])
    assert [event.type for event in events(log)["one"]] == ["created", "changed"], said


@pytest.mark.parametrize("date", ["", "x 0", "nan 0", "-inf 0", "1e300 0", f"0 {'9' * 400}", f"0 -{'9' * 4000}"])
def test_a_changeset_whose_date_no_page_could_show_is_refused(master: Master, date: str) -> None:
    master.create("one")
    crafted = changeset(manifest(ENTRY), b"file", date=date.encode())
    with master.serve("one") as address:
        said = push(address, crafted, [manifest(ENTRY)], {b"file": [ONE]})
        assert f"a changeset has a date that cannot be read: {crafted.node.hex()}" in said
    assert master.operate("log", "-R", str(master.root / "one")) == ""


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "a/./x", ".hg/hgrc", "a/.HG/hgrc", "a/..", "a/"])
def test_a_name_that_leads_out_of_a_folder_is_refused(master: Master, name: str) -> None:
    master.create("one")
    named = manifest((name.encode(), ONE.node, b""))
    with master.serve("one") as address:
        said = push(address, changeset(named, name.encode()), [named], {name.encode(): [ONE]})
    assert f"a changeset has a file that no working directory can have: {name}" in said
    assert master.operate("log", "-R", str(master.root / "one")) == ""


@pytest.mark.parametrize(
    ("source", "node"),
    [("one", "zz" * 20), ("one", "30"), ("one", ""), ("", "1" * 40), ("../../../other/.hg/store/data/x", "1" * 40)],
)
def test_a_copy_of_what_no_file_can_be_is_refused(master: Master, source: str, node: str) -> None:
    """Pages would follow it: `30` would be the first version, the number of which is the character 0."""
    master.create("one")
    copy = Revision(text=f"\1\ncopy: {source}\ncopyrev: {node}\n\1\ntext".encode())
    named = manifest((b"file", copy.node, b""))
    with master.serve("one") as address:
        said = push(address, changeset(named, b"file"), [named], {b"file": [copy]})
    assert f"a file is a copy of what no file can be: file@{copy.node.hex()}" in said
    assert master.operate("log", "-R", str(master.root / "one")) == ""


@pytest.mark.parametrize("name", [".hgtags", "a/.hgignore", "a..b/...", "..a/.h", "hg/.hg~"])
def test_a_name_with_dots_is_accepted(master: Master, log: Log, name: str) -> None:
    master.create("one")
    named = manifest((name.encode(), ONE.node, b""))
    with master.serve("one") as address:
        push(address, changeset(named, name.encode()), [named], {name.encode(): [ONE]})
    assert [event.type for event in events(log)["one"]] == ["created", "changed"]


def test_a_merge_that_names_no_file_of_its_parents_is_accepted(master: Master, log: Log) -> None:
    master.create("one")
    for text in ("a", "b"):
        master.commit("one", text)
    clone = ("-R", str(master.folder / "clone-one"))
    master.develop(*clone, "update", "-q", "0")
    (master.folder / "clone-one" / "other").write_text("other")
    master.develop(*clone, "commit", "-q", "-A", "-m", "other")
    master.develop(*clone, "merge", "-q")
    master.develop(*clone, "commit", "-q", "-m", "merge")
    assert master.develop(*clone, "log", "-r", "tip", "-T", "{files}") == ""
    master.push("one", "--force")
    assert [event.type for event in events(log)["one"]] == ["created", "changed"]


FALSE = Revision(text=b"one", false=b"f" * 20)
OF_FALSE = manifest((b"file", FALSE.node, b""))
FALSE_MANIFEST = Revision(text=manifest(ENTRY).text, false=b"m" * 20)


@pytest.mark.parametrize(("named", "version"), [(OF_FALSE, FALSE), (FALSE_MANIFEST, ONE)], ids=["a file", "a manifest"])
def test_content_that_has_not_its_hash_is_refused(master: Master, named: Revision, version: Revision) -> None:
    master.create("one")
    with master.serve("one") as address, contextlib.suppress(urllib.error.HTTPError):  # older Mercurials refuse it so
        push(address, changeset(named, b"file"), [named], {b"file": [version]})
    assert master.operate("log", "-R", str(master.root / "one")) == ""
