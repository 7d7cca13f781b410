# SPDX-License-Identifier: GPL-2.0-or-later
"""The blob stores keep one contract: a folder, and S3 as `moto` serves it."""

import contextlib
import dataclasses
import errno
import hashlib
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import boto3
import pytest

from hgext.vcsreplicator.log.blobs import open_blobs
from hgext.vcsreplicator.words.errors import MalformedEvent, NoRoom, Unavailable
from hgext.vcsreplicator.words.wire import Attachment, BundlePlace
from testing.faults.permission import under

pytestmark = pytest.mark.processes

PIECES = [b"HG20", b"x" * 3_000_000, b"end"]


@pytest.fixture(params=["file", "s3"])
def blobs(request, tmp_path, monkeypatch, unique_name):
    if request.param == "file":
        return open_blobs(f"file://{tmp_path}/blobs")
    monkeypatch.setenv("AWS_ENDPOINT_URL", request.getfixturevalue("aws").url)
    bucket = f"blobs-{unique_name}".lower().replace("_", "-")[:60]
    boto3.client("s3").create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    return open_blobs(f"s3://{bucket}/some/prefix")


def test_what_was_put_is_read_back_by_its_hash(blobs):
    attachment = blobs.put(iter(PIECES))
    whole = b"".join(PIECES)
    assert (attachment.where, attachment.size) == (BundlePlace.BLOB, len(whole))
    assert attachment.sha256 == hashlib.sha256(whole).hexdigest()
    with blobs.open(attachment) as file:
        assert file.read() == whole


def test_the_same_bundle_twice_is_one_blob_and_goes_by_age(blobs):
    first = blobs.put(iter(PIECES))
    assert blobs.put(iter(PIECES)) == first
    assert blobs.remove_older(time.time() - 3600) == 0
    assert blobs.remove_older(time.time() + 3600) == 1
    with pytest.raises(FileNotFoundError):
        blobs.open(first)


def test_a_blob_that_root_writes_belongs_to_the_owner_of_the_folder(tmp_path):
    if os.geteuid() == 0:
        os.chown(tmp_path, 65533, 65533)
    open_blobs(f"file://{tmp_path}/blobs").put(iter(PIECES))
    made = [file.stat() for file in (tmp_path / "blobs", *(tmp_path / "blobs").rglob("*"))]
    assert len(made) == 3
    assert {(each.st_uid, each.st_gid) for each in made} == {(tmp_path.stat().st_uid, tmp_path.stat().st_gid)}


def test_of_files_that_are_no_blobs_only_what_a_kill_left_goes_by_age(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("sub/letter.txt", "sub/backup.hg", ".incoming-abc"):
        (tmp_path / name).touch()
    assert open_blobs(f"file://{tmp_path}").remove_older(time.time() + 3600) == 1
    assert sorted(file.name for file in tmp_path.rglob("*.*")) == ["backup.hg", "letter.txt"]


def test_what_is_not_as_the_event_says_is_refused(blobs):
    attachment = blobs.put(iter(PIECES))
    with pytest.raises(MalformedEvent, match=r"another hash|more bytes"):
        blobs.open(dataclasses.replace(attachment, size=7))
    with pytest.raises(MalformedEvent, match=r"expected the hash and \.hg"):
        blobs.open(dataclasses.replace(attachment, name="../../etc/passwd"))


@pytest.mark.timeout(20)
def test_a_blob_of_another_size_is_refused_unread(tmp_path):
    blobs = open_blobs(f"file://{tmp_path}")
    attachment = blobs.put(iter(PIECES))
    [file] = tmp_path.rglob("*.hg")
    os.truncate(file, 1 << 40)
    with pytest.raises(MalformedEvent, match="1099511627776 bytes"):
        blobs.open(attachment)


class EndlessObject(BaseHTTPRequestHandler):
    """An S3 whose objects are as long as it is asked for, and longer; counts what it sends."""

    protocol_version = "HTTP/1.1"
    size, sent, most = 4096, 0, 256 << 20

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("Content-Length", str(self.size))
        self.end_headers()

    def do_GET(self):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            while type(self).sent < self.most:
                self.wfile.write(b"100000\r\n" + bytes(1 << 20) + b"\r\n")
                type(self).sent += 1 << 20

    def log_message(self, *_):
        pass


def test_no_more_is_read_of_an_object_than_the_event_names(monkeypatch):
    with ThreadingHTTPServer(("127.0.0.1", 0), EndlessObject) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        sha256 = "0" * 64
        size = EndlessObject.size
        attachment = Attachment(where=BundlePlace.BLOB, size=size, sha256=sha256, name=f"{sha256}.hg")
        with pytest.raises(MalformedEvent, match="more bytes than the event names"):
            open_blobs("s3://bucket").open(attachment)
        assert EndlessObject.sent < EndlessObject.most
        server.shutdown()


@pytest.mark.parametrize("url", ["file:///proc/no/blobs/here", "s3://no-such-bucket-of-ours"])
def test_a_store_that_is_not_there_is_unavailable(url, aws, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", aws.url)
    with pytest.raises(Unavailable, match="blobs: "):
        open_blobs(url).put(iter(PIECES))


def test_a_folder_without_space_is_named(tmp_path, system):
    system.refuse(errno.ENOSPC, "os.link")
    with pytest.raises(NoRoom, match=f"blobs: {tmp_path}: no space left on its disk; free some space"):
        open_blobs(f"file://{tmp_path}").put([b"bundle"])


def test_a_machine_without_space_for_a_bundle_on_its_way_to_s3_is_told_so(system):
    system.refuse(errno.ENOSPC, "tempfile.NamedTemporaryFile")
    with pytest.raises(NoRoom, match=f"blobs: {tempfile.gettempdir()}: no space left on its disk; free some space"):
        open_blobs("s3://bucket").put([b"bundle"])


@pytest.mark.parametrize("url", ["file://{}/blobs", "s3://bucket"])
def test_a_bundle_that_cannot_be_read_is_no_failure_of_the_store(tmp_path, url):
    """The relay says which file of the repository this user may not read, and what to run."""

    def bundle():
        yield b"HG20"
        raise PermissionError(errno.EACCES, "Permission denied", "/repos/a/.hg/store/data/x.i")

    with pytest.raises(PermissionError) as caught:
        open_blobs(url.format(tmp_path)).put(bundle())
    assert caught.value.filename == "/repos/a/.hg/store/data/x.i"


def test_a_store_that_accepts_and_says_nothing_is_unavailable(monkeypatch):
    """The client's own patience is five times a minute, and then some."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        begun = time.monotonic()
        with pytest.raises(Unavailable, match="blobs: "):
            open_blobs("s3://silent").put([b"some", b"bundle"])
        assert time.monotonic() - begun < 60


def test_a_blob_that_cannot_be_read_is_unavailable_not_gone(tmp_path):
    store = open_blobs(f"file://{tmp_path}")
    attachment = store.put([b"bundle"])
    (path,) = tmp_path.rglob("*.hg")
    path.unlink()
    path.mkdir()
    with pytest.raises(Unavailable, match="Is a directory"):
        store.open(attachment)


@pytest.mark.parametrize("step", ["link", "replace", "utime"])
def test_a_bundle_whose_storing_was_killed_is_stored_the_next_time(tmp_path, step):
    url = f"file://{tmp_path}/blobs"
    killed = f"""
import os, signal
from hgext.vcsreplicator.log.blobs import open_blobs
os.{step} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
open_blobs({url!r}).put([b"some", b"bundle"])
"""
    subprocess.run([sys.executable, "-c", killed], check=False)
    attachment = open_blobs(url).put([b"some", b"bundle"])
    with open_blobs(url).open(attachment) as file:
        assert file.read() == b"somebundle"


@pytest.mark.parametrize(("umask", "expected"), [(0, 0o770), (0o022, 0o750), (0o002, 0o770)])
def test_no_other_user_may_read_a_blob_under_any_umask(tmp_path, umask, expected):
    with under(umask):
        open_blobs(f"file://{tmp_path}/blobs").put(iter(PIECES))
    top, folder, blob = (stat.S_IMODE(made.stat().st_mode) for made in sorted(tmp_path.rglob("*")))
    assert (top, folder, blob) == (expected, expected, expected & 0o660)


def test_everybody_of_the_folders_group_may_store(tmp_path):
    tmp_path.chmod(0o2775)
    with under(0o022):
        open_blobs(f"file://{tmp_path}").put(iter(PIECES))
    folder, blob = sorted(tmp_path.rglob("*"))
    assert [oct(stat.S_IMODE(made.stat().st_mode)) for made in (folder, blob)] == ["0o2770", "0o660"]
