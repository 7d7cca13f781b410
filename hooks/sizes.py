# SPDX-License-Identifier: GPL-2.0-or-later
"""Maximum sizes of what a push brings.

The limits are for a file version, for all file versions of a push, and for the number of changesets of a push.

    [hooks]
    pretxnopen.streams = python:hooks.streams.refuse
    pretxnchangegroup.sizes = python:hooks.sizes.check

    [sizes]
    file = 50 MB
    push = 500 MB
    changesets = 10000
    # paths that may be larger, as `hg help patterns` (default: glob)
    except = docs/videos/**

What is not set is not limited. Sizes are of the contents, uncompressed, each version counted once. The push is refused before it
becomes visible; its data has been received by then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mercurial import error, match, util
from mercurial.localrepo import localrepository
from mercurial.ui import ui as Ui
from mercurial.utils import stringutil

from . import versions

SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What `[sizes]` says; 0 is no limit."""

    file: int
    push: int
    changesets: int
    excepted: list[bytes]


def check(ui: Ui, repo: localrepository, node: bytes, **_arguments: Any) -> bool:
    """Refuse what is too large: a `pretxnchangegroup` hook.

    `node` is the first new changeset. A setting that cannot be read refuses every push.
    """
    limits = _read_limits(dict(ui.configitems(b"sizes")))
    repo = repo.unfiltered()
    revs = range(repo[node].rev(), len(repo))
    if limits.changesets and len(revs) > limits.changesets:
        ui.warn(b"this push has %d changesets, at most %d are taken at once\n" % (len(revs), limits.changesets))
        return True
    if not limits.file and not limits.push:
        return False
    total, large = _weigh_versions(repo, revs, limits)
    for path, where, size in large[:SHOWN]:
        ui.warn(
            b"%s in %s has %s, at most %s are taken\n" % (path, where, _format_size(size), _format_size(limits.file))
        )
    if len(large) > SHOWN:
        ui.warn(b"and %d more files\n" % (len(large) - SHOWN))
    too_much = bool(limits.push and total > limits.push)
    if too_much:
        ui.warn(b"this push has %s, at most %s are taken at once\n" % (_format_size(total), _format_size(limits.push)))
    return bool(large) or too_much


def _read_limits(settings: dict[bytes, bytes]) -> Limits:
    number = {}
    for key, expected in ((b"file", b"50 MB"), (b"push", b"500 MB"), (b"changesets", b"10000")):
        try:
            number[key] = util.sizetoint(settings.get(key) or b"0")
        except (error.ParseError, OverflowError):
            number[key] = -1
        if number[key] < 0:
            text = b'config: [sizes] %s: expected something like %s, got "%s"'
            raise error.ConfigError(text % (key, expected, settings[key]))
    return Limits(
        file=number[b"file"],
        push=number[b"push"],
        changesets=number[b"changesets"],
        excepted=stringutil.parselist(settings.get(b"except", b"")),
    )


def _weigh_versions(repo: localrepository, revs: range, limits: Limits) -> tuple[int, list[tuple[bytes, bytes, int]]]:
    """Return all new bytes, and the (path, changeset, size) of large versions."""
    excepted = _match_excepted(repo, limits.excepted)
    total, large = 0, []
    for path, where, size in _list_versions(repo, revs):
        total += size
        if limits.file and size > limits.file and not excepted(path):
            large.append((path, where, size))
    return total, large


def _match_excepted(repo: localrepository, patterns: list[bytes]) -> Any:
    try:
        return match.match(repo.root, b"", patterns, default=b"glob") if patterns else match.never()
    except (error.Abort, error.ProgrammingError) as problem:  # that is a set:, which only a changeset could answer
        text = b"config: [sizes] except: expected patterns of paths, got %s: %s"
        raise error.ConfigError(text % (b" ".join(patterns), stringutil.forcebytestr(problem))) from problem


def _list_versions(repo: localrepository, revs: range) -> Iterator[tuple[bytes, bytes, int]]:
    seen = set()
    for rev in revs:
        for path, node in sorted(versions.brought(repo, rev).items()):
            if (path, node) not in seen:
                seen.add((path, node))
                log = repo.file(path)
                yield path, bytes(repo[rev]), log.size(log.rev(node))


def _format_size(size: int) -> bytes:
    return stringutil.forcebytestr(f"{size} bytes" if size < 1 << 20 else f"{size / (1 << 20):.1f} MB")
