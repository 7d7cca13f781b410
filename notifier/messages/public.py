# SPDX-License-Identifier: GPL-2.0-or-later
"""Decides by wire path which repositories are public, and their URLs. Pure.

A repository that is not public leaks nothing, not even its name: it has no message, and the rename of another does not name it.
"""

import enum
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass

from hgext.vcsreplicator.words.errors import MalformedEvent, quote_value
from hgext.vcsreplicator.words.path import check_path
from hgext.vcsreplicator.words.rules import Rules, check_rules
from hgext.vcsreplicator.words.secrecy import split_url


class Policy(enum.StrEnum):
    """The decision about a repository that no rule names."""

    ALLOW = "allow"
    DENY = "deny"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicSettings:
    """The section `[public]`.

    `urls` maps a wire prefix to the public URL of what is below it ("" for everything); the longest prefix wins, and a
    repository below none is not public. Repositories whose wire path begins with one of `ignore` are not public. Of the others
    `never` and `only` decide by rules (`path:EXACT`, `re:EXPRESSION`, matched at the start), `never` first; then `policy`.
    """

    urls: Mapping[str, str]
    ignore: tuple[str, ...] = ()
    policy: Policy = Policy.ALLOW
    only: tuple[str, ...] = ()
    never: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for prefix, url in self.urls.items():
            parts = split_url(url, "http", "https")
            if parts is None or "@" in parts.netloc or set("?#") & set(url):
                raise ValueError(
                    f"urls.{prefix}: expected an http or https URL with a host, without user, query and fragment, "
                    f"got {quote_value(url)}"
                )
        if "" in self.ignore:
            raise ValueError('ignore: expected prefixes of paths, got "" (use policy = "deny")')
        for prefix in self.ignore:
            if prefix.startswith("/"):
                raise ValueError(
                    f"ignore: expected prefixes of paths, which begin with no slash, got {quote_value(prefix)}"
                )
        for name in ("only", "never"):
            try:
                check_rules(Rules(include=getattr(self, name)))
            except MalformedEvent as error:
                raise ValueError(f"{name}: {error}") from error


def public_url(path: str, settings: PublicSettings) -> str | None:
    """Return the public URL of the repository at this wire path.

    The URL has no slash at its end. Returns None if the repository is not public.
    """
    if path.startswith(settings.ignore) or not _is_allowed(path, settings) or not _is_path(path):
        return None
    for prefix in sorted(settings.urls, key=len, reverse=True):
        folder = prefix.strip("/")
        below = path if not folder else path.removeprefix(folder)
        if not folder or path == folder or (below != path and below.startswith("/")):
            tail = urllib.parse.quote(below.strip("/"))
            return f"{settings.urls[prefix].rstrip('/')}/{tail}".rstrip("/")
    return None


def _is_path(path: str) -> bool:
    """Return whether a repository can be at this path.

    Old names in renames are untrusted text.
    """
    try:
        return bool(check_path(path))
    except MalformedEvent:
        return False


def _is_allowed(path: str, settings: PublicSettings) -> bool:
    if settings.never and Rules(include=settings.never).carries(path):
        return False
    if settings.only and Rules(include=settings.only).carries(path):
        return True
    return settings.policy is Policy.ALLOW and not settings.only
