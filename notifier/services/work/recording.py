# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads a message, and records its pushes.

The worker and its parallel variant share this module.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hgext.vcsreplicator.words.errors import MalformedEvent

from ...messages.pushes import HgPushMessage, QueuedPush, check_source, from_body
from .clones import Clones
from .commandserver import CommandServer, HgFailed
from .database import RepositoryKey, WorkDatabase

# Characters of a repository's URL: longer ones cannot be in an index.
LONGEST_URL = 1000


def read_message(
    headers: Mapping[str, Any], body: bytes, prefixes: tuple[str, ...]
) -> tuple[RepositoryKey, HgPushMessage]:
    """Return the repository and the pushes of a message; raises MalformedEvent."""
    message = from_body(body)
    return read_repository(headers.get("source"), message.repository_id, headers.get("repository"), prefixes), message


def read_repository(source: Any, number: int, url: Any, prefixes: tuple[str, ...]) -> RepositoryKey:
    """Return the repository that a sender names.

    Raises MalformedEvent unless its clone stays in the folder of clones and its URL begins with one of the prefixes.
    """
    if not isinstance(source, str) or not isinstance(url, str):
        raise MalformedEvent("expected source and repository")
    try:
        check_source(source)
    except ValueError as error:
        raise MalformedEvent(str(error)) from error
    is_plain = url.isascii() and url.isprintable() and " " not in url and len(url) <= LONGEST_URL
    if not url.startswith(prefixes) or not is_plain:
        expected = f"expected the beginning of one of work.repositories, and at most {LONGEST_URL} characters"
        raise MalformedEvent(f"repository {url[:200]!r}: {expected}")
    return RepositoryKey(source=source, number=number, url=url)


def headers_of(repository: RepositoryKey) -> dict[str, str]:
    return {"source": repository.source, "repository": repository.url}


def describe_failure(error: BaseException) -> str:
    """Return what an error says, in one line that fits a header."""
    return " ".join(str(error).split())[:1000]


def record_pushes(
    database: WorkDatabase,
    clones: Clones,
    hg: CommandServer,
    repository: RepositoryKey,
    pushes: Sequence[QueuedPush],
    prefixes: tuple[str, ...],
) -> None:
    """Pull the changesets that are new, record them in portions, and then the pushes.

    Pulls from the repository's present URL if that has one of the prefixes, and from the message's URL if the host lacks them at
    the present one. Raises the exceptions of `clones` and `database`.
    """
    nodes = list(dict.fromkeys(node for push in pushes for node in push.changesets))
    known = database.known(nodes)
    new = [node for node in nodes if node not in known]
    if new:
        url = database.present_url(repository, max(push.date for push in pushes))
        present = replace(repository, url=url) if url.startswith(prefixes) else repository
        try:
            clones.read(hg, present, new, database.add_changesets)
        except HgFailed as error:
            if present == repository or not error.is_of_host:
                raise
            clones.read(hg, repository, new, database.add_changesets)
    database.record(repository, pushes)
