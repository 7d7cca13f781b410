# SPDX-License-Identifier: GPL-2.0-or-later
"""`config check` for Mercurial: does `hg` load the extensions, or abort?"""

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ..config import Config
from ..log.blobs import open_blobs
from ..log.opening import parse_url
from ..words.errors import BadConfig
from ..words.version import VERSION
from .config_hg import AskedHg
from .options import relay_of

EXTENSIONS = ("vcsreplicator", "pushlog")
ROOTS = "vcsreplicator-roots."
# Keys with which a server hides something from clients: mirrors do not follow those in the hgrc of a master's site.
_HIDING = (
    "server.view",
    "web.view",
    "web.allow_read",
    "web.allow-read",
    "web.deny_read",
    "web.deny-read",
    "experimental.extra-filter-revs",
    "experimental.topic.server-gate-topic-changesets",
)
# Values that Mercurial reads as true.
_TRUE = {"1", "yes", "true", "on", "always"}


def check_hgrc(file: str | None, config: Config, report: Callable[[str], object], program: str | None = None) -> None:
    """Report where `hg` finds the extensions.

    `program` is the `hg` to ask, by default that of this installation. It reads the hgrc `file` or, if that is None, HGRCPATH.
    Raises BadConfig if it cannot run or aborts, could run without an extension, or is a master without pushlog, or one whose pushes
    the relay of `config` would not find.
    """
    where = file or "HGRCPATH"
    if file is not None and not os.path.isfile(file):
        raise BadConfig(f"--hgrc: {file}: no such file")
    hg = AskedHg(program, where, file)
    found = _read_settings(hg, program, report)
    if found is None:
        return
    if not _is_enabled(found, "vcsreplicator"):
        if file is not None or "vcsreplicator.role" in found:
            raise BadConfig(f"{where}: [extensions] vcsreplicator: expected a line that loads it, got nothing")
        reason = "with this HGRCPATH" if os.environ.get("HGRCPATH") else "HGRCPATH is not set, and"
        remedy = "on a master or mirror, run: vcsreplicator config check --hgrc FILE"
        report(f"no hgrc checked: {reason} hg does not load vcsreplicator; {remedy}")
        return
    _expect_required(where, found)
    if found.get("vcsreplicator.role") == "master" and not _is_enabled(found, "pushlog"):
        raise BadConfig(
            f"{where}: [extensions] pushlog: expected a line that loads it, got nothing: "
            "pushes would be accepted, and would never get a row in the pushlog"
        )
    with tempfile.TemporaryDirectory() as folder:  # only in a repository a failed set-up or a mistake in hgrc shows
        hg.ask("init", f"{folder}/empty", reads_hgrc=False)
        hg.ask("-R", f"{folder}/empty", "root")
    _report_extensions(hg, where, report)
    report(f"hg extension vcsreplicator: role {found.get('vcsreplicator.role', 'none')} ({where})")
    roots = {
        os.path.realpath(name.removeprefix(ROOTS)): "" if wire == "." else wire
        for name, wire in found.items()
        if name.startswith(ROOTS)
    }
    if found.get("vcsreplicator.role") == "master":
        _expect_same_relay(where, found.get("vcsreplicator.relay"), roots, config)
        _expect_urls(where, found)
    for text in (*_find_unused(found), *_find_doubts(found, config), *_find_rust(found, config, hg.program)):
        report(f"{where}: {text}")
    _name_repositories(roots, report)


def _read_settings(hg: AskedHg, program: str | None, report: Callable[[str], object]) -> dict[str, str] | None:
    """Return all settings as `hg` reads them; None if this installation has none.

    Reports the version of a `program` that was given; raises BadConfig if that is missing.
    """
    try:
        if program is not None:
            version = hg.ask("version", "-T", "{ver}\n", reads_hgrc=False)
            report(f"{program}: Mercurial {' '.join(version)}")
        lines = hg.ask("config", "-T", "{name}\t{value}\n")
    except FileNotFoundError as error:
        if program is not None:
            raise BadConfig(f"--hg: {program}: no such program") from error
        report(f"no hg beside {sys.executable} and none on PATH: a master and a mirror need it")
        return None
    return {name: value for name, tab, value in (line.partition("\t") for line in lines) if tab}


def _report_extensions(hg: AskedHg, where: str, report: Callable[[str], object]) -> None:
    """Report from where `hg` loads our extensions, and another release of them."""
    listed = hg.ask("debugextensions", "-T", "{name}\t{source}\n")
    sources = dict(line.split("\t") for line in listed)
    for name in EXTENSIONS:
        report(f"hg extension {name}: {sources.get(name, 'not enabled')} ({where})")
    if (version := _read_version(sources.get("vcsreplicator", ""))) != VERSION:
        report(f"{where}: hg loads vcsreplicator {version}, this is {VERSION}: install one release for both")


def _expect_required(where: str, found: Mapping[str, str]) -> None:
    """Raise BadConfig if `hg` could run without an extension that it should load."""
    for name in filter(lambda name: _is_enabled(found, name), EXTENSIONS):
        value = found.get(f"extensions.{name}:required", found.get("extensions.*:required", "nothing"))
        if value.lower() not in _TRUE:
            raise BadConfig(
                f"{where}: [extensions] *:required: expected yes, got {value}: "
                f"without it Mercurial continues when it cannot load {name}"
            )


def _find_doubts(found: Mapping[str, str], config: Config) -> Iterator[str]:
    """Yield what is allowed, and hardly what the operator wants."""
    if found.get("experimental.httppostargs", "yes").lower() not in _TRUE:
        yield (
            "[experimental] httppostargs is off: clients send 41 bytes of headers for each head, "
            "so a repository with thousands of heads cannot be cloned over HTTP; remove the line"
        )
    if found.get("vcsreplicator.role") == "mirror" and found.get("vcsreplicator.commits") == "accept":
        yield "[vcsreplicator] commits = accept has no effect: a mirror refuses all changes"
    if found.get("vcsreplicator.record-connection", "").lower() in _TRUE and not _is_decoded(config):
        yield "[vcsreplicator] record-connection is on, but no destination of type decode takes connections"


def _find_rust(found: Mapping[str, str], config: Config, program: str) -> Iterator[str]:
    """Yield what a Mercurial in Rust makes of the repositories.

    It loads no extension. It is in use where the hgrc has a section for it, or `program` is one.
    """
    if not any(name.startswith("rhg.") for name in found) and Path(program).resolve().name != "rhg":
        return
    if set(re.split(r"[\s,]+", found.get("rhg.ignored-extensions", ""))) & {"*", "vcsreplicator"}:
        yield (
            "[rhg] ignored-extensions: rhg does not ask hg, and shows what is not released on a mirror; name the others one by "
            "one, without vcsreplicator"
        )
    mirrors = config.tables.get("mirror", {}).values()
    is_mirror_locked = any(isinstance(section, dict) and section.get("lock") for section in mirrors)
    if found.get("vcsreplicator.lock", "").lower() in _TRUE or is_mirror_locked:
        yield "lock keeps readers in Rust out, too: rhg needs [rhg] on-unsupported = fallback (docs/push.md, Settings)"


def _find_unused(found: Mapping[str, str]) -> Iterator[str]:
    """Yield the settings of an hgrc, its own or its master's, that no mirror uses."""
    for name, value in sorted(found.items()):
        section, _, key = name.partition(".")
        line = f"[{section}] {key} = {value}"
        is_followed = name == "phases.publish" or re.fullmatch(r"experimental\.evolution(\..+)?", name)
        if found.get("vcsreplicator.role") == "mirror" and is_followed:
            yield f"{line} has no effect: a mirror follows its master; remove the line"
        hides = value.lower() not in ("", "served", "no", "false") and not (value == "*" and "allow" in name)
        if found.get("vcsreplicator.role") == "master" and name in _HIDING and hides:
            yield f"{line}: mirrors do not follow this hgrc; write the line into that of each mirror, too"


def _is_decoded(config: Config) -> bool:
    """Return whether a destination hands pushes with their origin to the decoder."""
    sections = config.tables.get("notifier", {}).values()
    return any(isinstance(section, dict) and section.get("type") == "decode" for section in sections)


def _expect_same_relay(where: str, socket: str | None, roots: dict[str, str], config: Config) -> None:
    """Raise BadConfig if the relay has another socket, or lacks a root of this hgrc.

    So does an hgrc without roots; another hgrc may have the relay's other roots. Pushes that send their events themselves need no
    relay.
    """
    relay = relay_of(config)
    if relay is None or not socket:
        return
    if os.path.realpath(socket) != os.path.realpath(relay.socket):
        raise BadConfig(
            f"{where}: [vcsreplicator] relay: expected {relay.socket}, the socket of [relay] in {config.file}, got {socket}"
        )
    known = {os.path.realpath(folder): prefix for folder, prefix in relay.roots.items()}
    described = ", ".join(f"{folder} = {prefix or '.'}" for folder, prefix in sorted(known.items())) or "nothing"
    if not roots:
        raise BadConfig(
            f"{where}: [vcsreplicator-roots]: expected a root of [relay.roots] of {config.file} ({described}), "
            "got nothing: pushes would not be replicated"
        )
    for folder, prefix in roots.items():
        if known.get(folder) != prefix:
            raise BadConfig(
                f"{where}: [vcsreplicator-roots]: {folder} = {prefix or '.'}: not in [relay.roots] of {config.file}, "
                f"which has: {described}"
            )


def _expect_urls(where: str, found: Mapping[str, str]) -> None:
    """Raise BadConfig for the URL of a log or store that is none.

    A push that sends its events itself does not say so: it is kept until the log answers.
    """
    log, blobs = found.get("vcsreplicator.log"), found.get("vcsreplicator.blobs")
    try:
        if log:
            parse_url(log)
        if blobs:
            open_blobs(blobs)
    except BadConfig as error:
        raise BadConfig(f"{where}: [vcsreplicator] {error}") from error
    except ValueError as error:
        raise BadConfig(f"{where}: [vcsreplicator] blobs: {error}") from error


def _name_repositories(roots: dict[str, str], report: Callable[[str], object]) -> None:
    """Report repositories below these roots whose names mirrors or servers refuse."""
    # Most verbs do not need Mercurial.
    from ..hg.master import twins

    if unserved := twins.find_unserved(roots):
        report(
            f"web servers have their own files at static/, and serve no repository there: {', '.join(unserved)}: rename"
        )
    for folders in twins.find_all(roots):
        report(f"names that differ only in case or Unicode: {', '.join(folders)}: rename all but one")


def _is_enabled(found: Mapping[str, str], extension: str) -> bool:
    place = found.get(f"extensions.{extension}")
    return place is not None and not place.startswith("!")


def _read_version(source: str) -> str:
    """Return the version of the extension in this file of any environment."""
    try:
        found = re.search(
            r'^VERSION = "(.+)"$', Path(source).with_name("words").joinpath("version.py").read_text(), re.M
        )
    except OSError:
        found = None
    return found[1] if found else "of an unknown version"
