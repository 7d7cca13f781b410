# SPDX-License-Identifier: GPL-2.0-or-later
"""Files of raw messages become files of decoded ones, whole or not at all."""

import errno
import gzip
import json
import shutil
import uuid
from collections import Counter
from pathlib import Path

import pytest
import zstandard
from click.testing import CliRunner

from hgext.vcsreplicator.cli.decode import command
from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.errors import Refused
from notifier.messages.raw import RawMessage, from_line, to_line
from notifier.services.decode import batch
from notifier.services.decode.batch import decode_files, find_files
from notifier.services.decode.decoding import Tools, decode, list_identities
from notifier.services.decode.repeats import Repeats, open_repeats
from notifier.services.decode.settings import DecodeSettings
from testing.builders.notifier.submissions import a_document, a_raw, uri_of
from testing.faults.system import System


def lines_of(*messages: RawMessage) -> bytes:
    return b"".join(to_line(message) + b"\n" for message in messages)


def numbered(numbers: range) -> bytes:
    return lines_of(*(a_raw(a_document(number), uri=uri_of(number)) for number in numbers))


def ids(file: Path) -> list[int]:
    return [uuid.UUID(json.loads(line)["document_id"]).int for line in file.read_text().splitlines()]


def decoded(paths: list[Path], output: Path, tools: Tools, repeats: Repeats | None = None) -> Counter[str]:
    return decode_files(find_files(paths), output, tools, repeats or Repeats(None, SystemClock()), lambda read: None)


@pytest.mark.more
def test_files_and_folders_are_decoded_whatever_packs_them(tools: Tools, tmp_path: Path) -> None:
    source = tmp_path / "in"
    (source / "deeper").mkdir(parents=True)
    (source / "a.ndjson").write_bytes(numbered(range(3)).removesuffix(b"\n"))
    (source / "b.ndjson.gz").write_bytes(
        gzip.compress(numbered(range(3, 700))) + gzip.compress(numbered(range(700, 702)))
    )
    frames = [zstandard.ZstdCompressor().compress(numbered(part)) for part in (range(702, 703), range(703, 704))]
    (source / "deeper" / "c.ndjson.zst").write_bytes(b"".join(frames))
    (source / "notes.txt").write_text("not a message")
    read: list[int] = []
    files = find_files([source])
    counts = decode_files(files, tmp_path / "out", tools, Repeats(None, SystemClock()), read.append)
    assert counts == {"decoded": 704}
    assert ids(tmp_path / "out" / "eng-workflow.hgpush.ndjson") == list(range(704))
    assert sum(read) == sum(file.stat().st_size for file in files)


def test_rejects_are_lines_that_can_be_decoded_again(tools: Tools, tmp_path: Path) -> None:
    wrong = a_raw(uri=uri_of(1).replace("/1/", "/2/"))
    (tmp_path / "a.ndjson").write_bytes(lines_of(wrong, a_raw(b"[]")) + b"no json\n")
    assert decoded([tmp_path / "a.ndjson"], tmp_path / "out", tools) == {"schema": 1, "json": 1, "form": 1}
    kept = [from_line(line) for line in (tmp_path / "out" / "errors.ndjson").read_bytes().splitlines()]
    assert kept[0].payload == wrong.payload
    assert kept[2].attributes["error_place"] == f"{tmp_path}/a.ndjson:3"
    assert "remote_addr" not in kept[0].attributes
    counts = decoded([tmp_path / "out" / "errors.ndjson"], tmp_path / "again", tools)
    assert counts == {"schema": 1, "json": 1, "attributes": 1}


def test_repeats_are_seen_within_a_run_and_from_one_to_the_next(tools: Tools, tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_bytes(numbered(range(3)) * 2)
    settings = DecodeSettings(repeats=str(tmp_path / "repeats.db"))
    for run, expected in enumerate([{"decoded": 3, "repeat": 3}, {"repeat": 6}]):
        repeats = open_repeats(settings, SystemClock())
        assert decoded([tmp_path / "a.ndjson"], tmp_path / f"out{run}", tools, repeats) == expected
        repeats.close()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("b.ndjson.gz", gzip.compress(b"x\n" * 1000, mtime=0)[:-9]),
        ("b.ndjson.gz", b"no gzip"),
        ("b.ndjson.zst", zstandard.ZstdCompressor().compress(b"x\n" * 1000)[:2]),
        ("b.ndjson.zst", zstandard.ZstdCompressor().compress(b"x\n" * 1000)[:-1]),
        ("b.ndjson.zst", b"no zstd"),
    ],
)
@pytest.mark.more
def test_a_broken_file_is_named_and_leaves_no_output_and_no_id(
    name: str, content: bytes, tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "_BATCH", 5)
    (tmp_path / "a.ndjson").write_bytes(numbered(range(6)))
    (tmp_path / name).write_bytes(content)
    settings = DecodeSettings(repeats=str(tmp_path / "repeats.db"))
    repeats = open_repeats(settings, SystemClock())
    with pytest.raises(Refused, match=name):
        decoded([tmp_path / "a.ndjson", tmp_path / name], tmp_path / "out", tools, repeats)
    assert not list((tmp_path / "out").iterdir())
    assert not repeats.known(list_identities([decode(numbered(range(1)).strip(), tools)]))
    repeats.close()


def test_an_existing_output_is_not_overwritten(tools: Tools, tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_bytes(numbered(range(3)))
    decoded([tmp_path / "a.ndjson"], tmp_path / "out", tools)
    before = (tmp_path / "out" / "eng-workflow.hgpush.ndjson").read_bytes()
    with pytest.raises(Refused, match="exists"):
        decoded([tmp_path / "a.ndjson"], tmp_path / "out", tools)
    assert (tmp_path / "out" / "eng-workflow.hgpush.ndjson").read_bytes() == before


def test_a_line_without_end_is_refused(tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "LARGEST", 1000)
    (tmp_path / "a.ndjson").write_bytes(b"x" * 1001)
    with pytest.raises(Refused, match=r"a\.ndjson:1: a line of more than 1000 bytes"):
        decoded([tmp_path / "a.ndjson"], tmp_path / "out", tools)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(Refused, match=r"a\.txt: expected"):
        find_files([tmp_path / "a.txt"])


def test_a_folder_without_files_of_raw_messages_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(Refused, match=r"expected files whose names end with one of \.ndjson, .* found none"):
        find_files([tmp_path])


def test_an_output_that_cannot_be_made_is_named(tools: Tools, tmp_path: Path) -> None:
    (tmp_path / "in.ndjson").write_bytes(numbered(range(1)))
    (tmp_path / "taken").write_text("")
    with pytest.raises(Refused, match="taken: cannot be written: File exists"):
        decoded([tmp_path / "in.ndjson"], tmp_path / "taken", tools)


def test_a_full_disk_is_named_and_leaves_no_output(tools: Tools, tmp_path: Path) -> None:
    (tmp_path / "in.ndjson").write_bytes(numbered(range(1)))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "eng-workflow.hgpush.ndjson.partial").symlink_to("/dev/full")
    with pytest.raises(Refused, match="out: cannot be written: No space left on device"):
        decoded([tmp_path / "in.ndjson"], tmp_path / "out", tools)
    assert list((tmp_path / "out").iterdir()) == []


class Killed(BaseException):
    """The end of the process, at a step that a test chooses."""


def fail_at_the_second_rename(system: System, error: BaseException) -> None:
    """Let the next run rename one output, and fail at the second."""
    seen = list[str]()

    def fail(path: str) -> None:
        seen.append(path)
        if len(seen) == 2:
            raise error

    system.watch(fail, "os.replace")


@pytest.mark.parametrize(
    ("error", "raised"), [(OSError(errno.EIO, "Input/output error"), Refused), (Killed(), Killed)], ids=str
)
def test_a_failed_rename_leaves_no_output_and_no_id(
    error: BaseException, raised: type[BaseException], tools: Tools, tmp_path: Path, system: System
) -> None:
    (tmp_path / "in.ndjson").write_bytes(numbered(range(3)) + b"no json\n")
    repeats = open_repeats(DecodeSettings(repeats=str(tmp_path / "repeats.db")), SystemClock())
    fail_at_the_second_rename(system, error)
    with pytest.raises(raised):
        decoded([tmp_path / "in.ndjson"], tmp_path / "out", tools, repeats)
    assert list((tmp_path / "out").iterdir()) == []
    assert decoded([tmp_path / "in.ndjson"], tmp_path / "out", tools, repeats) == {"decoded": 3, "form": 1}
    repeats.close()


def test_a_run_killed_between_renames_can_be_seen_and_repeated_whole(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.ndjson").write_bytes(numbered(range(3)) + b"no json\n")
    repeats = open_repeats(DecodeSettings(repeats=str(tmp_path / "repeats.db")), SystemClock())
    with monkeypatch.context() as patched:
        fail_at_the_second_rename(System(patched), Killed())
        # A kill removes nothing.
        patched.setattr(batch._OutputFolder, "close", lambda output: [file.close() for file in output._files.values()])
        with pytest.raises(Killed):
            decoded([tmp_path / "in.ndjson"], tmp_path / "out", tools, repeats)
    left = sorted(each.name for each in (tmp_path / "out").iterdir())
    assert left == ["eng-workflow.hgpush.ndjson", "errors.ndjson.partial"]
    with pytest.raises(Refused, match="exists"):
        decoded([tmp_path / "in.ndjson"], tmp_path / "out", tools, repeats)
    shutil.rmtree(tmp_path / "out")
    assert decoded([tmp_path / "in.ndjson"], tmp_path / "out", tools, repeats) == {"decoded": 3, "form": 1}
    repeats.close()


def test_the_command_says_what_it_did(tmp_path: Path) -> None:
    config = tmp_path / "services.toml"
    config.write_text(f'log = "sqlite://{tmp_path}/log.db"\n[decode]\nrepeats = "none"\n')
    (tmp_path / "a.ndjson").write_bytes(numbered(range(3)) + b"no json\n")
    arguments = ["-c", str(config), str(tmp_path / "a.ndjson")]
    done = CliRunner().invoke(command, [*arguments, "--output", str(tmp_path / "out")], catch_exceptions=False)
    assert done.stdout.splitlines()[-1] == "decoded 3, rejected 1, form 1"
    assert "decoding" not in done.stderr
    assert CliRunner().invoke(command, arguments).exit_code == 2
