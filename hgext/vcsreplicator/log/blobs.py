# SPDX-License-Identifier: GPL-2.0-or-later
"""The blob store: bundles that are too large for a record of the log.

Blobs are named by their hash and kept longer than the events that name them.

`file:///folder`       a folder that master and mirrors share
`s3://bucket/prefix`   any S3; credentials, region and endpoint come from the environment as boto3 reads it

A blob is whole or absent: a folder's is written under another name, synced, then linked; S3 shows an object only once it is
complete. The same bundle twice is one blob. A blob that is gone is no disaster: a mirror pulls from the master instead.
"""

import contextlib
import errno
import functools
import hashlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

from ..words.errors import BlobsUnavailable, MalformedEvent, NoRoomForBlobs, quote_value
from ..words.wire import BUNDLE_LIMIT, Attachment, BundlePlace
from .ownership import give_to_owner, make_folder

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

EXPECTED = "expected file:///absolute/folder or s3://bucket/prefix"

_NAME = re.compile(r"[0-9a-f]{64}\.hg\Z")
_INCOMING = ".incoming-"


class BlobStore(Protocol):
    """A store of bundles, which the relay writes and mirrors read."""

    def put(self, chunks: Iterable[bytes]) -> Attachment:
        """Store the chunks durably and return where they are.

        Raises BlobsUnavailable, NoRoomForBlobs, or the OSError of the chunks.
        """

    def open(self, attachment: Attachment) -> IO[bytes]:
        """Open the bundle as a file whose hash was checked; the caller closes it.

        Raises FileNotFoundError if the blob is gone, MalformedEvent if it is not what the event names, and BlobsUnavailable.
        """

    def remove_older(self, time: float) -> int:
        """Remove the blobs stored before `time`, and return how many.

        `time` is in seconds since the epoch. Raises BlobsUnavailable.
        """


def open_blobs(url: str) -> BlobStore:
    """Open the store at `url`; raise ValueError for a URL that cannot be right."""
    try:
        parts = urlsplit(url)
    except ValueError as error:  # an address that is none
        raise ValueError(f"{EXPECTED}, got {quote_value(url)}") from error
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        return FolderBlobs(unquote(parts.path))
    if parts.scheme == "s3" and parts.netloc:
        return S3Blobs(parts.netloc, unquote(parts.path).strip("/"))
    raise ValueError(f"{EXPECTED}, got {quote_value(url)}")


class FolderBlobs:
    """Blobs as files, spread over 256 folders.

    A user who may write to the folder may write to all of it, independently of the umask. Its group may read all, other users
    nothing. Files that root writes belong to the owner of the folder.
    """

    def __init__(self, folder: str) -> None:
        self._folder = os.path.normpath(folder)

    def put(self, chunks: Iterable[bytes]) -> Attachment:
        try:
            if not os.path.isdir(self._folder):
                os.makedirs(os.path.dirname(self._folder), exist_ok=True)
                with contextlib.suppress(FileExistsError):
                    make_folder(self._folder)
            with _spool_chunks(chunks, self._folder) as (file, attachment):
                path, mode = self._find_path(attachment), os.stat(self._folder).st_mode
                if not os.path.exists(path):
                    with contextlib.suppress(FileExistsError):
                        make_folder(os.path.dirname(path), mode & 0o2770)
                    os.fsync(file.fileno())
                    os.fchmod(file.fileno(), 0o640 | mode & 0o020)
                    give_to_owner(file.fileno(), self._folder)
                    with contextlib.suppress(FileExistsError):  # another process was faster
                        os.link(file.name, path)
                    sync_folder(os.path.dirname(path))
                sync_folder(self._folder)  # unconditionally: a kill may have come after an earlier mkdir
                os.utime(path)
        except _ChunksFailed as failed:
            raise failed.error from None
        except OSError as error:
            raise _describe_failure(self._folder, error) from error
        return attachment

    def open(self, attachment: Attachment) -> IO[bytes]:
        try:
            with _closed_on_error(open(self._find_path(attachment), "rb")) as file:
                _check(file, attachment)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise BlobsUnavailable(f"blobs: {self._folder}: {error}") from error
        return file

    def remove_older(self, time: float) -> int:
        count = 0
        for folder, _, names in os.walk(self._folder):
            for name in names:
                path = os.path.join(folder, name)
                try:
                    if (_NAME.match(name) or name.startswith(_INCOMING)) and os.stat(path).st_mtime < time:
                        os.unlink(path)
                        count += 1
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise BlobsUnavailable(f"blobs: {self._folder}: {error}") from error
        return count

    def _find_path(self, attachment: Attachment) -> str:
        name = checked_name(attachment)
        return os.path.join(self._folder, name[:2], name)


class S3Blobs:
    """Blobs as objects below a prefix."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self._bucket, self._prefix = bucket, prefix + "/" if prefix else ""

    def put(self, chunks: Iterable[bytes]) -> Attachment:
        try:
            with _spool_chunks(chunks, None) as (file, attachment), _translate_errors(self._bucket):
                file.seek(0)
                self._client.upload_fileobj(file, self._bucket, self._find_key(attachment))
        except _ChunksFailed as failed:
            raise failed.error from None
        except OSError as error:
            raise _describe_failure(tempfile.gettempdir(), error) from error
        return attachment

    def open(self, attachment: Attachment) -> IO[bytes]:
        key, left = self._find_key(attachment), min(attachment.size or 0, BUNDLE_LIMIT)

        def count(size: int) -> None:
            nonlocal left
            left -= size
            if left < 0:
                raise MalformedEvent(f"blob {attachment.name}: more bytes than the event names")

        with _closed_on_error(tempfile.TemporaryFile()) as file:
            with _translate_errors(self._bucket):
                self._client.download_fileobj(self._bucket, key, file, Callback=count)
            _check(file, attachment)
        return file

    def remove_older(self, time: float) -> int:
        count = 0
        with _translate_errors(self._bucket):
            for page in self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix
            ):
                for item in page.get("Contents", ()):
                    if item["LastModified"].timestamp() < time and _NAME.search(item["Key"]):
                        self._client.delete_object(Bucket=self._bucket, Key=item["Key"])
                        count += 1
        return count

    def _find_key(self, attachment: Attachment) -> str:
        return self._prefix + checked_name(attachment)

    @functools.cached_property
    def _client(self) -> "S3Client":
        import boto3
        from botocore.config import Config

        # The caller retries indefinitely; by itself the client waits for a silent S3 for minutes.
        once = Config(connect_timeout=4, read_timeout=10, retries={"total_max_attempts": 1})
        return boto3.client("s3", config=once)


def checked_name(attachment: Attachment) -> str:
    """Return the blob's name if it is the hash that the event names.

    Raises MalformedEvent if not: the name becomes part of a path, and it came from the log.
    """
    if attachment.name is None or not _NAME.match(attachment.name) or attachment.name[:64] != attachment.sha256:
        raise MalformedEvent(f"attachment.name: expected the hash and .hg, got {str(attachment.name)[:80]!r}")
    return attachment.name


class _ChunksFailed(Exception):
    """The chunks could not be made, because of `error`; the store is not asked."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


def _read_chunks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    try:
        yield from chunks
    except OSError as error:
        raise _ChunksFailed(error) from error


@contextlib.contextmanager
def _spool_chunks(chunks: Iterable[bytes], folder: str | None) -> Iterator[tuple[Any, Attachment]]:
    """Write the chunks to a temporary file; give it and the blob's attachment.

    The file is removed at the end of the block. The memory needed does not grow with the chunks.
    """
    digest, size = hashlib.sha256(), 0
    with tempfile.NamedTemporaryFile(dir=folder, prefix=_INCOMING) as file:
        for chunk in _read_chunks(chunks):
            digest.update(chunk)
            size += len(chunk)
            file.write(chunk)
        file.flush()
        sha256 = digest.hexdigest()
        yield file, Attachment(where=BundlePlace.BLOB, size=size, sha256=sha256, name=sha256 + ".hg")


def _describe_failure(folder: str, error: OSError) -> BlobsUnavailable:
    """Return the error for a bundle that could not be written in a folder."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoRoomForBlobs(f"blobs: {folder}: no space left on its disk; free some space")
    return BlobsUnavailable(f"blobs: {folder}: {error}")


@contextlib.contextmanager
def _closed_on_error(file: IO[bytes]) -> Iterator[IO[bytes]]:
    """Give the file, which stays open for the caller unless the block fails."""
    try:
        yield file
    except BaseException:
        file.close()
        raise


def _check(file: Any, attachment: Attachment) -> None:
    """Raise MalformedEvent if the file is not the attachment; otherwise rewind it."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    is_sized = size == attachment.size and size <= BUNDLE_LIMIT  # only then is it worth reading
    if not is_sized or hashlib.file_digest(file, "sha256").hexdigest() != attachment.sha256:
        raise MalformedEvent(f"blob {attachment.name}: {size} bytes with another hash than the event names")
    file.seek(0)


@contextlib.contextmanager
def _translate_errors(bucket: str) -> Iterator[None]:
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") in ("404", "NoSuchKey"):
            raise FileNotFoundError(f"s3://{bucket}: no such blob") from error
        raise BlobsUnavailable(f"blobs: s3://{bucket}: {error}") from error
    except (Boto3Error, BotoCoreError) as error:
        raise BlobsUnavailable(f"blobs: s3://{bucket}: {error}") from error


def sync_folder(path: str | Path) -> None:
    """Sync the folder of a new file: a loss of power could undo the file's name.

    `pushlog.store.disk` has one of its own: who imports the pushlog loads Mercurial, and the pushlog works without us.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
