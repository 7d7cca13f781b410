# SPDX-License-Identifier: GPL-2.0-or-later
"""What `setup` must know of a host, and the questions that it asks."""

import enum
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from ...words import shape
from ...words.errors import BadConfig, MalformedEvent, quote_value
from ...words.secrecy import exposures

# Where the services keep what is not in the log.
STATE = "/var/lib/vcsreplicator"
# The user who owns all repositories.
HG = "hg"
# What a mirror of the same machine copies from.
OWN_MASTER = "http://127.0.0.1:8000/"
KINDS = ("none", "jsonlines", "webhook")
_ACCOUNT = "[a-z_][a-z0-9_.-]*"
# An SSH key in one line, with a comment.
PUBLIC_KEY = "[a-z0-9@.-]+ [A-Za-z0-9+/=]+( .*)?"


class Role(enum.StrEnum):
    """What a machine does."""

    ONE_MACHINE = "one-machine"
    MASTER = "master"
    MIRROR = "mirror"
    SERVICES = "services"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAnswers:
    """The answers; folders are absolute.

    `host` is this machine's name in events, `copies` the folder of the mirror `name`, `url` what the public reads, `master` from
    where the mirror copies. `destinations` are KINDS or URLs of brokers.
    """

    role: Role
    host: str
    log: str
    blobs: str | None = None
    repos: str = "/repos"
    copies: str = "/repos"
    name: str = "alpha"
    url: str = ""
    master: str = OWN_MASTER
    destinations: tuple[str, ...] = ("jsonlines",)
    developers: tuple[str, ...] = ()
    mirror_keys: tuple[str, ...] = ()
    insecure: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("repos", "copies"):
            if os.path.normpath(path := getattr(self, name)) != path or not re.match("/[^/]", path):
                raise ValueError(f"{name}: expected an absolute path of a folder, got {quote_value(path)}")
        for name in ("host", "log", "blobs", "repos", "copies", "url", "master"):
            if re.search(r"[\s\"\\%]", (getattr(self, name) or "").replace("%20", "")):  # of a unit or an hgrc
                raise ValueError(f"{name}: expected no space, quote, percent or backslash, got {getattr(self, name)!r}")
        self._check_names()
        self._check_urls()
        for name, pattern in (("developers", _ACCOUNT), ("mirror_keys", PUBLIC_KEY)):
            for value in getattr(self, name):
                if not re.fullmatch(pattern, value):
                    raise ValueError(
                        f"{name}: expected an account or a public key in one line, got {quote_value(value)}"
                    )

    def _check_names(self) -> None:
        if not re.fullmatch("[a-z0-9][a-z0-9-]*", self.name):
            raise ValueError(f"name: expected lower-case letters, digits and hyphens, got {quote_value(self.name)}")
        if self.role is Role.ONE_MACHINE and os.path.commonpath([self.repos, self.copies]) in (self.repos, self.copies):
            raise ValueError(f"copies: expected a folder apart from {self.repos}, got {self.copies}")

    def _check_urls(self) -> None:
        if not re.match("(sqlite:///|kafka://)[^/]", self.log):
            raise ValueError(f"log: expected sqlite:///FILE or kafka://HOST:PORT, got {quote_value(self.log)}")
        if self.is_embedded and self.role is not Role.ONE_MACHINE:
            raise ValueError(f"log: expected kafka://HOST:PORT, which all machines reach, got {quote_value(self.log)}")
        if self.has_services and not re.fullmatch("https?://[^/]+/(.*/)?", self.url):
            raise ValueError(f"url: expected https://HOST/ with a / at its end, got {quote_value(self.url)}")
        for each in self.destinations:
            if each not in KINDS and not re.match("amqps?://[^/@]+@[^/]+", each):
                known = ", ".join(KINDS)
                raise ValueError(f"destinations: expected {known} or amqps://USER@HOST/, got {quote_value(each)}")
        named = [("log", self.log), ("master", self.master), *(("destinations", each) for each in self.destinations)]
        for name, url in named:
            for exposure, found in exposures(url):
                if exposure.value not in self.insecure:
                    raise ValueError(f"{name}: {found}; if it is meant, add --insecure {exposure.value}")

    @property
    def is_embedded(self) -> bool:
        return self.log.startswith("sqlite:")

    @property
    def log_folder(self) -> str | None:
        """The folder of the embedded log."""
        return os.path.dirname(unquote(urlsplit(self.log).path)) if self.is_embedded else None

    @property
    def has_master(self) -> bool:
        return self.role in (Role.ONE_MACHINE, Role.MASTER)

    @property
    def has_mirror(self) -> bool:
        return self.role in (Role.ONE_MACHINE, Role.MIRROR)

    @property
    def has_services(self) -> bool:
        return self.role in (Role.ONE_MACHINE, Role.SERVICES)

    @property
    def copies_over_ssh(self) -> bool:
        return self.role is Role.MIRROR and self.master.startswith("ssh://")

    @property
    def services_user(self) -> str:
        """The user of aggregator and notifier: an embedded log has one user."""
        return HG if self.is_embedded else "vcsreplicator"

    @property
    def user(self) -> str:
        """The user who may use all that the services of this machine do."""
        return HG if self.has_master or self.has_mirror else self.services_user

    @property
    def brokers(self) -> tuple[str, ...]:
        return tuple(each for each in self.destinations if each not in KINDS) if self.has_services else ()


# What is asked: the answer, the roles that must give it, and the question.
_ALL = frozenset(Role)
QUESTIONS = (
    ("repos", {Role.ONE_MACHINE, Role.MASTER}, "Folder of the repositories that take pushes"),
    ("copies", {Role.ONE_MACHINE, Role.MIRROR}, "Folder of the mirror's copies"),
    ("name", {Role.ONE_MACHINE, Role.MIRROR}, "Name of the mirror"),
    ("master", {Role.MIRROR}, "Where the mirror copies from (ssh://hg-mirror@MASTER//repos)"),
    ("url", {Role.ONE_MACHINE, Role.SERVICES}, "Public URL of the mirrors"),
    ("log", _ALL, "Log (sqlite:///FILE on one machine, else kafka://HOST:PORT)"),
    ("destinations", {Role.ONE_MACHINE, Role.SERVICES}, f"Where notices go ({', '.join(KINDS)}, amqps://USER@HOST/)"),
)


def default_answers(role: Role, host: str) -> dict[str, Any]:
    """Return the answers that hold unless others are given."""
    found: dict[str, Any] = {
        "role": role,
        "host": host,
        "url": f"https://{host}/",
        "repos": "/repos",
        "copies": "/repos",
    }
    found |= {"name": "alpha", "destinations": ["jsonlines"]}
    if role is Role.ONE_MACHINE:
        found |= {"copies": "/srv/alpha", "log": f"sqlite://{STATE}/log.db"}
    return found


def choose_answers(
    given: Mapping[str, Any], former: Mapping[str, Any], host: str, ask: Callable[[str, str | None], str] | None
) -> HostAnswers:
    """Join what was given, what was answered at the former run, and the defaults.

    `ask` gets each question that `given` does not answer, with its default; None asks nothing. Raises BadConfig.
    """
    try:
        role = Role(
            given.get("role") or former.get("role") or (ask("Role", Role.ONE_MACHINE) if ask else "one-machine")
        )
    except ValueError as error:
        raise BadConfig(f"setup: {error}: expected one of {', '.join(Role)}") from error
    kept = former if former.get("role") in (None, role) else {}
    known = {**default_answers(role, host), **kept, **given, "role": str(role)}
    known["developers"] = given.get("developers", [])  # those of former runs are in the group
    known["mirror_keys"] = list(dict.fromkeys([*kept.get("mirror_keys", ()), *given.get("mirror_keys", ())]))
    if "blobs" not in known and str(known.get("log")).startswith("sqlite:"):
        known["blobs"] = f"file://{STATE}/blobs"
    for name, roles, question in QUESTIONS:
        if ask is not None and role in roles and name not in given:
            is_list = name == "destinations"
            answer = ask(question, " ".join(known[name]) if is_list else known.get(name))
            known[name] = answer.split() if is_list else answer
    if (made := kept.get("name", known["name"])) != known["name"]:
        # The file would lose the mirror, whose services go on.
        raise BadConfig(
            f"setup: --name: expected {made}, the mirror that setup made here, got {quote_value(known['name'])}; "
            "docs/by-hand.md adds a mirror, and `setup --undo` takes this one back"
        )
    for name, roles, question in QUESTIONS:
        if role in roles and name not in known:
            raise BadConfig(f"setup: --{name}: expected an answer, got nothing: {question}")
    try:
        return shape.read(HostAnswers, known, "setup")
    except MalformedEvent as error:
        raise BadConfig(shape.hyphened(str(error))) from error
