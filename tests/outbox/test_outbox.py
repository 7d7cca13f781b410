# SPDX-License-Identifier: GPL-2.0-or-later
"""The outbox without Mercurial: what is unsent, what is kept, and what a lost marker costs."""

import contextlib
import os
import sys
import tracemalloc
from dataclasses import replace
from types import SimpleNamespace

import pytest

from hgext.vcsreplicator.hg.master import refusals
from hgext.vcsreplicator.outbox import file as outbox_file
from hgext.vcsreplicator.outbox.bundles import Bundle
from hgext.vcsreplicator.outbox.entry import Entry, MirrorNeeds, NewestEvent, before_first_event, new_id
from hgext.vcsreplicator.outbox.file import Fork, Outbox, SentMark, TornRecord
from hgext.vcsreplicator.outbox.folder import Store, read_file, remove_folder
from hgext.vcsreplicator.outbox.forks import fork_at_path, fork_behind, fork_between, is_void
from hgext.vcsreplicator.words import digest
from hgext.vcsreplicator.words.errors import MalformedEvent
from hgext.vcsreplicator.words.event import MOST_REPLACED
from hgext.vcsreplicator.words.shape import to_json
from hgext.vcsreplicator.words.wire import HEADER_LIMIT
from pushlog.store import frames
from testing.builders.aggregator.states import state_of
from testing.builders.master.outboxes import Folder, Transaction, following


def entries(count, before=None):
    return following(before or before_first_event("a", 1), count)


@pytest.fixture
def box(tmp_path):
    return Outbox(Folder(str(tmp_path)))


@pytest.mark.parametrize("name", [outbox_file.FORK, outbox_file.SENT, outbox_file.SEGMENT.format(1).encode()])
def test_no_reason_quotes_a_file_that_a_link_names(box, tmp_path, name):
    """Pushers and operators read why a repository refuses pushes."""
    (tmp_path / "key").write_text("password\n")
    (tmp_path / os.fsdecode(name)).symlink_to("key")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        assert [box.fork(), box.has_unsent(), box.newest()]


def test_what_is_behind_the_marker_is_unsent(box):
    made = entries(3)
    box.append(Transaction(), made)
    assert box.has_unsent()
    places = list(box.unsent())
    assert [place.entry for place in places] == made
    box.mark_sent(places[1].sent())
    assert [place.entry for place in box.unsent()] == made[2:]
    box.mark_sent(places[2].sent())
    assert not box.has_unsent()
    assert list(box.unsent()) == []


def test_a_marker_that_is_lost_or_torn_means_everything_again(box, tmp_path):
    box.append(Transaction(), entries(2))
    box.mark_sent(list(box.unsent())[-1].sent())
    (tmp_path / "outbox.sent").write_bytes(b'{"seq": 1')
    assert len(list(box.unsent())) == 2
    assert box.has_unsent()


@pytest.fixture
def short_segments(monkeypatch):
    """Each append begins a segment."""
    monkeypatch.setattr(outbox_file, "SEGMENT_SIZE", 1)


@pytest.mark.usefixtures("short_segments")
def test_a_new_segment_goes_on_where_the_old_one_ended(box):
    made = entries(3)
    for entry in made:
        box.append(Transaction(), [entry])
    assert box.segments() == [1, 2, 3]
    assert box.newest() == NewestEvent.of(made[-1].event)
    places = list(box.unsent())
    box.mark_sent(places[0].sent())
    assert [place.entry for place in box.unsent()] == made[1:]
    assert box.has_unsent()
    box.mark_sent(places[1].sent())
    assert [place.entry for place in box.unsent()] == made[2:]
    assert [place.entry for place in box.kept()] == made


@pytest.mark.usefixtures("short_segments")
def test_what_the_log_has_comes_newest_first_across_segments(box):
    made = entries(7)
    box.append(Transaction(), made[:3])  # at once, into one segment
    for entry in made[3:]:
        box.append(Transaction(), [entry])
    assert list(box.acknowledged()) == []
    box.mark_sent(list(box.unsent())[4].sent())
    assert list(box.acknowledged()) == made[4::-1]


def test_after_an_adoption_an_event_of_the_history_before_is_no_fork(box):
    before = entries(2)
    newest = NewestEvent.of(before[-1].event)
    adopted = replace(newest, incarnation=new_id(), seq=0, id="", digest=digest.START)
    after = entries(2, adopted)
    box.append(Transaction(), before + after)
    known = SimpleNamespace(incarnation=adopted.incarnation, seq=1, event=after[0].event.id)
    assert fork_between(known, box.newest(), box) is None
    known.event = before[0].event.id
    assert "another event 1" in fork_between(known, box.newest(), box).reason


@pytest.mark.parametrize("since", [0, 1, 5])
def test_a_marker_of_what_the_outbox_does_not_have_is_a_fork(box, tmp_path, since):
    made = entries(4)
    box.append(Transaction(), made[:2])
    restored = (tmp_path / "outbox.0001.log").read_bytes()
    box.append(Transaction(), made[2:])
    assert fork_behind(box) is None
    box.mark_sent(list(box.unsent())[-1].sent())
    assert fork_behind(box) is None
    (tmp_path / "outbox.0001.log").write_bytes(restored)
    box.append(Transaction(), entries(since, NewestEvent.of(made[1].event)))
    assert "the log has its event 4" in fork_behind(box).reason


def test_a_marker_without_any_event_is_a_fork(box, tmp_path):
    box.append(Transaction(), entries(1))
    box.mark_sent(next(box.unsent()).sent())
    (tmp_path / "outbox.0001.log").write_bytes(b"")
    assert "the log has its event 1" in fork_behind(box).reason


@pytest.mark.parametrize("marked", [1, 3, 4])
@pytest.mark.parametrize("known", [1, 3, 4, 5, 6])
def test_a_fork_is_seen_from_wherever_the_marker_and_the_log_stand(box, marked, known):
    made = entries(6)
    box.append(Transaction(), made)
    box.mark_sent(list(box.unsent())[marked - 1].sent())
    event = made[known - 1].event
    assert (
        fork_between(SimpleNamespace(incarnation=event.incarnation, seq=known, event=event.id), box.newest(), box)
        is None
    )
    other = SimpleNamespace(incarnation=event.incarnation, seq=known, event="e" * 32)
    assert f"another event {known}" in fork_between(other, box.newest(), box).reason


def test_a_fork_is_seen_without_a_marker(box):
    made = entries(3)
    box.append(Transaction(), made)
    known = SimpleNamespace(incarnation=made[0].event.incarnation, seq=2, event="e" * 32)
    assert "another event 2" in fork_between(known, box.newest(), box).reason


def test_a_marker_behind_the_end_of_an_outbox_hides_no_fork(box, tmp_path):
    made = entries(3)
    box.append(Transaction(), made)
    box.mark_sent(replace(list(box.unsent())[-1].sent(), end=10**6))
    known = SimpleNamespace(incarnation=made[0].event.incarnation, seq=2, event="e" * 32)
    assert "another event 2" in fork_between(known, box.newest(), box).reason


def break_one(folder, place):
    """Makes one entry unreadable, and no other."""
    with open(folder / "outbox.0001.log", "r+b") as file:
        file.seek(place.end - 20)
        file.write(b"#")


def test_what_waits_is_not_read_to_see_that_there_is_no_fork(box, tmp_path):
    made = entries(9)
    box.append(Transaction(), made)
    places = list(box.unsent())
    box.mark_sent(places[3].sent())
    break_one(tmp_path, places[6])
    for newest in made[:5]:  # the log may have more than is marked
        event = newest.event
        known = SimpleNamespace(incarnation=event.incarnation, seq=event.seq, event=event.id)
        assert fork_between(known, box.newest(), box) is None


def test_what_waits_is_not_read_to_see_an_adoption(box, tmp_path):
    before = entries(4)
    newest = NewestEvent.of(before[-1].event)
    adopted = replace(newest, incarnation=new_id(), seq=0, id="", digest=digest.START)
    after = entries(6, adopted)
    first = replace(after[0].event, detail={"replaces": newest.incarnation})
    box.append(Transaction(), [*before, Entry(event=first, needs=MirrorNeeds.NOTHING), *after[1:]])
    places = list(box.unsent())
    break_one(tmp_path, places[7])
    known = SimpleNamespace(incarnation=newest.incarnation, seq=2, event=before[1].event.id)
    for marked in (0, 3, 4, 5):
        box.mark_sent(places[marked].sent())
        assert fork_between(known, box.newest(), box) is None


def histories(count, first):
    """The two events of each of these histories; each begins with the adoption that replaces the one before it."""
    made = [entries(2, first)]
    for _ in range(count - 1):
        before = NewestEvent.of(made[-1][-1].event)
        start, after = entries(2, replace(before, incarnation=new_id(), seq=0, id="", digest=digest.START))
        event = replace(start.event, detail={"reason": "adopted", "replaces": before.incarnation})
        made.append([replace(start, event=event), after])
    return made, [each[0].event.incarnation for each in made]


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("marked", [None, 0, 3, 7])
def test_all_that_was_replaced_is_named_newest_first(box, request, is_cut, marked):
    if is_cut:
        request.getfixturevalue("short_segments")
    assert box.replaced() == ()
    _, original = entries(2)
    made, names = histories(4, before_first_event("b", 1))
    for entry in (original, *(entry for each in made for entry in each)):
        box.append(Transaction(), [entry])
    if marked is not None:
        box.mark_sent(list(box.kept())[marked].sent())
    assert box.replaced() == tuple(names[2::-1])


@pytest.mark.parametrize("marked", [0, 1])
def test_what_waits_before_an_adoption_is_still_sent_after_a_loss(box, marked):
    made, _ = histories(2, before_first_event("a", 1))
    every = [entry for each in made for entry in each]
    box.append(Transaction(), every)
    sent = list(box.kept())[marked].sent()
    box.mark_sent(replace(sent, partition=0, offset=7))
    assert box.send_again() == 1
    assert [place.entry for place in box.unsent()] == every[marked + 1 :]
    assert box.sent() == sent


@pytest.mark.usefixtures("short_segments")
def test_what_was_replaced_is_named_as_far_as_a_kept_adoption_knows(box, tmp_path):
    made, names = histories(4, before_first_event("a", 1))
    for entry in (entry for each in made for entry in each):
        box.append(Transaction(), [entry])
    for number in range(1, 5):
        (tmp_path / outbox_file.SEGMENT.format(number)).unlink()
    assert box.replaced() == (names[2], names[1])


def test_a_damaged_event_hides_only_the_replaced_histories_before_it(box, tmp_path):
    made, names = histories(4, before_first_event("a", 1))
    box.append(Transaction(), [entry for each in made for entry in each])
    break_one(tmp_path, list(box.kept())[3])
    assert box.replaced() == (names[2], names[1])


def test_no_more_histories_are_named_as_replaced_than_a_reader_takes(box):
    made, names = histories(MOST_REPLACED + 3, before_first_event("a", 1))
    box.append(Transaction(), [entry for each in made for entry in each])
    assert box.replaced() == tuple(names[-2 : -2 - MOST_REPLACED : -1])


def test_a_fork_names_the_history_that_the_log_has_instead(box):
    made = entries(2)
    box.append(Transaction(), made)
    known = SimpleNamespace(incarnation="a" * 32, seq=1, event="e" * 32)
    assert fork_between(known, box.newest(), box).incarnation == known.incarnation
    known.incarnation = made[0].event.incarnation
    assert fork_between(known, box.newest(), box).incarnation is None


@pytest.mark.parametrize("left", ["older", "other", "replaced"])
@pytest.mark.parametrize("known", [2, 3])
def test_a_fork_is_void_once_the_outbox_has_the_event(box, tmp_path, left, known):
    segment, made = tmp_path / "outbox.0001.log", entries(3)
    box.append(Transaction(), made)
    box.mark_sent(list(box.unsent())[-1].sent())
    whole, state = segment.read_bytes(), state_of(made[known - 1].event)
    contents = {
        "older": made[:1],
        "other": made[:1] + entries(2, NewestEvent.of(made[0].event)),
        "replaced": entries(2),
    }
    segment.write_bytes(b"")
    box.append(Transaction(), contents[left])
    forks = [fork_between(state, box.newest(), box), fork_at_path([state], state.path, state.generation, None)]
    if left == "older":
        forks.append(fork_behind(box))
    assert [is_void(fork, box) for fork in forks] == [False] * len(forks)
    segment.write_bytes(whole)
    assert [is_void(fork, box) for fork in forks] == [True] * len(forks)
    assert not is_void(replace(forks[0], event=None), box), "an older release wrote none"
    assert not is_void(replace(forks[0], seq=None), box)
    segment.write_bytes(b"")
    assert not is_void(forks[0], box)


def test_a_mark_of_a_fork_is_read_as_it_was_written(box):
    assert box.fork() is None
    for fork in (
        Fork(reason="restored \N{EM DASH} from a copy?"),
        Fork(reason="other", incarnation="a" * 32, seq=3, event="b" * 32),
    ):
        box.set_fork(fork)
        assert box.fork() == fork
    box.set_fork(None)
    assert box.fork() is None


@pytest.mark.parametrize(
    ("reason", "incarnation"),
    [
        ("the log has its event 4, which is not in the outbox (restored from a backup?)", None),
        (f"the log has incarnation {'a' * 32} of it, the repository is {'b' * 32}", "a" * 32),
    ],
)
def test_a_mark_of_a_fork_by_an_older_release_is_its_reason(box, tmp_path, reason, incarnation):
    (tmp_path / "outbox.fork").write_text(reason)
    assert box.fork() == Fork(reason=reason, incarnation=incarnation)


@pytest.mark.usefixtures("short_segments")
def test_segments_are_removed_only_when_sent_and_not_named_by_undo(box, tmp_path):
    for entry in entries(5):
        box.append(Transaction(), [entry])
    assert box.prune() == []
    box.mark_sent(list(box.unsent())[-1].sent())
    (tmp_path / "undo").write_bytes(b"outbox.0002.log\x000\n")
    assert box.prune() == [1, 3]
    assert box.segments() == [2, 4, 5]
    assert box.newest().seq == 5


@pytest.mark.usefixtures("short_segments")
def test_segments_are_not_removed_while_the_sender_may_move_the_mark_back(box):
    made = entries(5)
    for entry in made:
        box.append(Transaction(), [entry])
    box.mark_sent(list(box.unsent())[-1].sent())
    with box.sending(wait=True):
        assert box.prune() == []
        assert box.send_again() == 1
    assert box.prune() == []
    assert [place.entry for place in box.unsent()] == made


@pytest.mark.usefixtures("short_segments")
def test_no_sender_moves_the_mark_back_while_segments_are_removed(box, monkeypatch):
    made = entries(5)
    for entry in made:
        box.append(Transaction(), [entry])
    box.mark_sent(list(box.unsent())[-1].sent())

    def send_again_meanwhile(path, limit=outbox_file.FILE_LIMIT):
        with box.sending(wait=False) as alone:
            first = box.send_again() if alone else None
        assert first is None
        return read_file(path, limit)

    monkeypatch.setattr(outbox_file, "read_file", send_again_meanwhile)
    assert box.prune() == [1, 2, 3]
    with box.sending(wait=False) as alone:
        assert (alone, box.send_again()) == (True, 4)


def test_a_repository_that_is_moved_away_meanwhile_leaves_no_file_open(tmp_path):
    class Moved(Store):
        def join(self, name):
            return super().join(name) if name else b"/nowhere"

    box = Outbox(Moved(str(tmp_path)))
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError) as kept:
        box.prepare_sent(SentMark(seq=1, id="a" * 32, segment=1, end=1))
    assert len(os.listdir("/proc/self/fd")) == len(before), kept


def test_only_one_sends(box):
    with box.sending(wait=True) as first, box.sending(wait=False) as second:
        assert (first, second) == (True, False)


def test_an_event_that_fits_the_outbox_fits_a_record():
    assert refusals.EVENT_LIMIT == HEADER_LIMIT - 64 * 1024


def test_identifiers_are_new_each_time():
    assert len({new_id() for _ in range(100)} | {os.urandom(16).hex()}) == 101


@pytest.mark.parametrize("name", ["outbox.sent", "outbox.fork"])
def test_of_a_huge_file_no_more_is_read_than_an_outbox_writes(box, tmp_path, name):
    made = entries(1)
    box.append(Transaction(), made)
    with open(tmp_path / name, "wb") as file:
        file.truncate(HUGE)
    with bounded_memory():
        assert [place.entry for place in box.unsent()] == made
        box.fork()


@pytest.mark.parametrize("read", ["newest", "unsent"])
def test_a_record_that_claims_more_than_one_may_hold_is_not_read(box, tmp_path, read):
    with open(tmp_path / "outbox.0001.log", "wb") as file:
        file.write(b"OBX1" + (HUGE - 16).to_bytes(4, "big"))
        file.truncate(HUGE - 4)
        file.seek(0, os.SEEK_END)
        file.write((HUGE - 16).to_bytes(4, "big"))
    with bounded_memory(), pytest.raises(TornRecord, match=f"a record of {HUGE - 16} bytes"):
        box.newest() if read == "newest" else list(box.unsent())


HUGE = 1 << 28


@contextlib.contextmanager
def bounded_memory():
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'"seq":1', b'"seq":"1"'), (b'"path":"a"', b'"path":[]'), (b'"length":0', b'"length":0.5'), (b"{", b"[" * 3000)],
)
def test_a_newest_entry_of_another_form_cannot_be_read(box, tmp_path, old, new):
    content = to_json(entries(1)[0])
    assert old in content
    (tmp_path / "outbox.0001.log").write_bytes(frames.encode(b"OBX1", content.replace(old, new, 1)))
    with pytest.raises(MalformedEvent, match="newest entry cannot be read"):
        box.newest()
    assert box.names() == {}


@pytest.mark.parametrize(
    ("size", "expected"), [(b"12", 12), (b"", 0), (b"x", 0), (b"-1", 0), (b"9" * 30, 0), (b"9" * 5000, 0)]
)
def test_a_damaged_size_of_a_bundle_counts_as_not_known(box, tmp_path, size, expected):
    bundle = Bundle(iter([b"content"]), unpacked=1)
    box.bundles.store("e", bundle)
    (tmp_path / "outbox-e.size.log").write_bytes(size)
    with box.bundles.opened("e") as stored:
        assert (b"".join(stored), stored.unpacked) == (b"content", expected)


def test_a_bundle_is_there_once_it_is_stored(box):
    assert box.bundles.has("e") is False
    box.bundles.store("e", Bundle(iter([b"content"]), unpacked=1))
    assert box.bundles.has("e") is True


def test_an_outbox_ends_only_at_the_mark_of_its_newest_event(box):
    box.append(Transaction(), entries(2))
    first, last = (place.sent() for place in box.unsent())
    assert [box.ends_at(first), box.ends_at(last)] == [False, True]
    assert box.ends_at(replace(last, segment=2)) is False


def test_where_nothing_is_preallocated_the_size_tells_the_end(box, tmp_path, system):
    box.append(Transaction(), entries(1))
    (last,) = (place.sent() for place in box.unsent())
    os.truncate(tmp_path / "outbox.0001.log", last.end)
    system.watch(lambda _: pytest.fail("it was opened"), "os.open", at="*/outbox.0001.log")
    assert box.ends_at(last) is True


def test_an_empty_outbox_has_no_names_for_a_log_line(box):
    assert box.names() == {}
    made = entries(2)
    box.append(Transaction(), made)
    assert box.names()["seq"] == 1
    box.mark_sent(list(box.unsent())[-1].sent())
    assert box.names()["seq"] == 2


def test_a_damaged_event_fits_its_mark_where_a_record_ends_there(box, tmp_path):
    box.append(Transaction(), entries(3))
    places = list(box.unsent())
    break_one(tmp_path, places[1])
    assert box.fits(places[1].sent())


def test_folders_too_deep_for_their_removal_end_no_caller(tmp_path):
    """As in a relay, whose rounds remove what accounts may have left."""
    (tmp_path / "folder").joinpath(*["d"] * 400).mkdir(parents=True)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(350)
    try:
        remove_folder(str(tmp_path), str(tmp_path / "folder"))
    finally:
        sys.setrecursionlimit(limit)
    assert (tmp_path / "folder").exists()


def test_the_removal_of_a_folder_leaves_no_file_open(tmp_path):
    (tmp_path / "above" / "folder").mkdir(parents=True)
    before = os.listdir("/proc/self/fd")
    remove_folder(str(tmp_path), str(tmp_path / "above" / "folder"))
    assert not (tmp_path / "above" / "folder").exists()
    assert len(os.listdir("/proc/self/fd")) == len(before)
