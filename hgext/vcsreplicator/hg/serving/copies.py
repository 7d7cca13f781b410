# SPDX-License-Identifier: GPL-2.0-or-later
"""Files that a client copies from disk: stream clones, clone and pull bundles.

Nothing can be hidden in a file, so a mirror gives files away only while everything on disk is released.
"""

import errno
import time
from collections.abc import Callable
from typing import Any

from mercurial import bundle2, error
from mercurial.localrepo import localrepository
from mercurial.wireprototypes import baseprotocolhandler

from pushlog import seams

from .views import everything_is_released, is_mirror

# Seconds that a stream clone waits for a release.
STREAM_PATIENCE = 10.0
_UNRELEASED = b"this mirror holds changesets that are not released yet; please retry"
# The attribute of a repository object that answers a client with a stream.
_STREAMING = "_vcsreplicator_streaming"


def install() -> None:
    """Wrap every function that gives files away, or raise MissingSeam."""
    seams.wrap("mercurial.streamclone", "allowservergeneration", _offer_stream)
    seams.wrap("mercurial.bundle2", "addpartbundlestream2", _answer_stream)
    seams.wrap("mercurial.streamclone", "generatev1", _generate_legacy_stream)
    for name in ("generatev2", "generatev3"):
        seams.wrap("mercurial.streamclone", name, _generate_stream)
    seams.wrap("mercurial.exchanges.bundle_cache", "get_manifest_lines", _read_manifest)
    seams.wrap("mercurial.wireprotov1server", "find_pullbundle", _find_pull_bundle)
    seams.wrap("mercurial.wireprotov1server", "commands.get_cached_bundle_inline", _send_inline_bundle)


def _offer_stream(orig: Callable[..., bool], repo: localrepository) -> bool:
    """Offer a stream clone while all is released; the stream checks that again."""
    is_answering = getattr(repo.unfiltered(), _STREAMING, False)
    return (is_answering or everything_is_released(repo)) and orig(repo)


def _answer_stream(
    orig: Callable[..., Any], bundler: bundle2.bundle20, repo: localrepository, *args: Any, **kwargs: Any
) -> Any:
    """Answer a client that was offered a stream, even if events came since."""
    setattr(repo.unfiltered(), _STREAMING, True)
    try:
        return orig(bundler, repo, *args, **kwargs)
    finally:
        setattr(repo.unfiltered(), _STREAMING, False)


def _generate_stream(orig: Callable[..., Any], repo: localrepository, *args: Any, **kwargs: Any) -> Any:
    """List a stream's files under the lock once all is released, or raise Abort."""
    if not is_mirror(repo.ui):
        return orig(repo, *args, **kwargs)
    end = time.monotonic() + STREAM_PATIENCE
    while True:
        with repo.lock():
            if everything_is_released(repo):
                return orig(repo, *args, **kwargs)
        if time.monotonic() > end:
            raise error.Abort(_UNRELEASED + b", or without --stream")
        time.sleep(0.02)


def _generate_legacy_stream(orig: Callable[..., Any], repo: localrepository, *args: Any, **kwargs: Any) -> Any:
    """Refuse old clients with the only temporary error that they understand."""
    try:
        return _generate_stream(orig, repo, *args, **kwargs)
    except error.Abort as refusal:
        raise error.LockError(errno.EAGAIN, str(refusal), repo.root, b"not released") from refusal


def _read_manifest(orig: Callable[..., list[bytes]], repo: localrepository) -> list[bytes]:
    """List clone bundles, which hold all that was on disk, only if it is released."""
    return orig(repo) if everything_is_released(repo) else []


def _find_pull_bundle(orig: Callable[..., Any], repo: localrepository, *args: Any, **kwargs: Any) -> Any:
    return orig(repo, *args, **kwargs) if everything_is_released(repo) else None


def _send_inline_bundle(
    orig: Callable[..., Any], repo: localrepository, proto: baseprotocolhandler, path: bytes
) -> Any:
    if not everything_is_released(repo):
        raise error.Abort(_UNRELEASED)
    return orig(repo, proto, path)
