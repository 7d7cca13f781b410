# SPDX-License-Identifier: GPL-2.0-or-later
"""Maximum sizes of pushes.

The limits are for a file version, for all file versions of a push, and for the number of changesets of a push.

    [hooks]
    pretxnopen.streams = python:hooks.streams.refuse
    pretxnclose.sizes = python:hooks.sizes.check

    [sizes]
    file = 50 MB
    push = 500 MB
    changesets = 10000
    # paths that may be larger, as `hg help patterns` (default: glob)
    except = docs/videos/**

Without a setting there is no limit. Sizes are those of file histories, uncompressed: contents, and copy sources. Versions that the
server has already do not count. The push is refused before it becomes visible; its data has been received by then. Descriptions
and manifests are not weighed: uncompressed, each manifest names every file of the tree, so its size does not show what is new.

The journal of the transaction has the former length of each file and so shows the new versions: changesets and manifests are only
the pusher's claims, and so is the changeset of a version. As `pretxnchangegroup` the hook misses versions without a changeset.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mercurial import error, match, util
from mercurial.localrepo import localrepository
from mercurial.revlog import revlog
from mercurial.transaction import transaction as Transaction
from mercurial.ui import ui as Ui
from mercurial.utils import stringutil

# Most files that a message names.
SHOWN = 10


def check(ui: Ui, repo: localrepository, source: bytes = b"", **_arguments: Any) -> bool:
    """Refuse too large pushes: a `pretxnclose` hook, or a `pretxnchangegroup` one.

    Of the hook's arguments it takes only `source`: a transaction without one is no push, pull or unbundle. A strip is never
    refused: the changesets that it adds again would be lost. A setting that cannot be read refuses every push.
    """
    tr = repo.currenttransaction()
    if source in (b"", b"strip") or tr is None:
        return False
    settings = dict(ui.configitems(b"sizes"))
    file_limit = _read_limit(settings, b"file", b"50 MB")
    push_limit = _read_limit(settings, b"push", b"500 MB")
    count_limit = _read_limit(settings, b"changesets", b"10000")
    repo = repo.unfiltered()
    changesets = len(repo) - tr.changes[b"origrepolen"]
    if count_limit and changesets > count_limit:
        ui.warn(b"this push has %d changesets, at most %d are taken at once\n" % (changesets, count_limit))
        return True
    if not file_limit and not push_limit:
        return False
    total, large = _weigh_versions(repo, tr, file_limit, stringutil.parselist(settings.get(b"except", b"")))
    for path, where, size in large[:SHOWN]:
        ui.warn(
            b"%s in %s has %s, at most %s are taken\n" % (path, where, _format_size(size), _format_size(file_limit))
        )
    if len(large) > SHOWN:
        ui.warn(b"and %d more files\n" % (len(large) - SHOWN))
    too_much = bool(push_limit and total > push_limit)
    if too_much:
        ui.warn(b"this push has %s, at most %s are taken at once\n" % (_format_size(total), _format_size(push_limit)))
    return bool(large) or too_much


def _read_limit(settings: dict[bytes, bytes], key: bytes, expected: bytes) -> int:
    """Return a limit in bytes, 0 for none; raises ConfigError.

    The error says what was `expected`.
    """
    try:
        limit = util.sizetoint(settings.get(key) or b"0")
    except (error.ParseError, OverflowError):
        limit = -1
    if limit < 0:
        text = b'config: [sizes] %s: expected something like %s, got "%s"'
        raise error.ConfigError(text % (key, expected, settings[key]))
    return limit


def _weigh_versions(
    repo: localrepository, tr: Transaction, limit: int, patterns: list[bytes]
) -> tuple[int, list[tuple[bytes, bytes, int]]]:
    """Return all new bytes, and the (path, changeset, size) of large versions."""
    excepted = _match_excepted(repo, patterns)
    total, large = 0, []
    for rev, path, size in _list_versions(repo, tr):
        total += size
        if limit and size > limit and not excepted(path):
            large.append((rev, path, size))
    return total, [(path, bytes(repo[rev]), size) for rev, path, size in sorted(large)]


def _match_excepted(repo: localrepository, patterns: list[bytes]) -> Any:
    try:
        return match.match(repo.root, b"", patterns, default=b"glob") if patterns else match.never()
    except (error.Abort, error.ProgrammingError) as problem:  # such as set:, which needs a changeset
        text = b"config: [sizes] except: expected patterns of paths, got %s: %s"
        raise error.ConfigError(text % (b" ".join(patterns), stringutil.forcebytestr(problem))) from problem


def _list_versions(repo: localrepository, tr: Transaction) -> Iterator[tuple[int, bytes, int]]:
    """Yield changeset, path and size of each file version that a transaction adds."""
    for name, length in [*tr._offsetmap.items(), *((new, 0) for new in tr._newfiles)]:
        if name.startswith(b"data/") and name.endswith(b".i"):
            path = name[len(b"data/") : -len(b".i")]
            file = repo.file(b"/" + path)  # Mercurial drops one slash
            log = file._revlog
            # Until this transaction split it, the contents of a short history lay between the entries of its index.
            was_inline = log._inline or name[: -len(b".i")] + b".d" in tr._newfiles
            for rev in range(_count_before(log, length, was_inline=was_inline), len(log)):
                # A version of LFS says how large its content is, which is elsewhere.
                yield log.linkrev(rev), path, max(log.rawsize(rev), file.size(rev))


def _count_before(log: revlog, length: int, *, was_inline: bool) -> int:
    """Return how many versions a history had when its index had this length."""
    rev = len(log)
    while rev and (rev - 1) * log.index.entry_size + (log.start(rev - 1) if was_inline else 0) >= length:
        rev -= 1
    return rev


def _format_size(size: int) -> bytes:
    return stringutil.forcebytestr(f"{size} bytes" if size < 1 << 20 else f"{size / (1 << 20):.1f} MB")
