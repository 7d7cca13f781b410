# SPDX-License-Identifier: GPL-2.0-or-later
"""The texts of the files that `setup` writes, made from the answers alone."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .answers import HG, OWN_MASTER, STATE, HostAnswers, Role

MASTER_HGRC, MIRROR_HGRC = "/etc/mercurial/master.hgrc", "/etc/mercurial/mirror.hgrc"
READ_ONLY_HGRC = "/etc/mercurial/read-only.hgrc"
SOCKET = "/run/vcsreplicator/relay.sock"
PASSWORD = "/etc/vcsreplicator/pulse.password"
UNITS = "/etc/systemd/system"
WEB = "vcsreplicator-web"
# The master's user whose keys may read, for mirrors.
COPIER = "hg-mirror"
# Where the packaged units expect the programs.
PACKAGED = "/opt/vcsreplicator/bin"
_PORTS = {"relay": 9101, "mirror": 9102, "aggregator": 9103, "notifier": 9104, "verify": 9108}

_HGRC = """\
[extensions]
*:required = yes
pushlog =
vcsreplicator =

[vcsreplicator]
role = {role}
{settings}
# Whose hgrc in a repository counts: no account can forge one of root's.
[trusted]
users = {owner}
"""
READ_ONLY = """\
[hooks]
pretxnopen.read-only = python:hooks.maintenance.refuse
prepushkey.read-only = python:hooks.maintenance.refuse
[maintenance]
message = this key may read, and not push
"""


def write_services_file(answers: HostAnswers) -> str:
    """Return the services' file of this machine."""
    return "".join(f"{line}\n" for line in _list_toml(answers))


def _list_toml(answers: HostAnswers) -> Iterator[str]:
    yield "# Written by `vcsreplicator setup`; `vcsreplicator config example` prints every key."
    if answers.insecure:
        yield f"insecure = {_quote(answers.insecure)}"
    yield f"log = {_quote(answers.log)}"
    if answers.blobs:
        yield f"blobs = {_quote(answers.blobs)}"
    if answers.has_master:
        yield from ("", "[relay]", f"socket = {_quote(SOCKET)}", f"source = {_quote(f'hg://{answers.host}')}")
        yield from ("[relay.roots]", f'{_quote(answers.repos)} = ""')
    if answers.has_mirror:
        yield from ("", f"[mirror.{answers.name}]", f"root = {_quote(answers.copies)}")
        yield f"master = {_quote(answers.master)}"
    if answers.has_services:
        yield from ("", "[aggregator]", "", "[public.urls]", f'"" = {_quote(answers.url)}')
        yield from _list_destinations(answers)
    yield from ("", "[listen]")
    # Elsewhere other machines ask, and a firewall keeps strangers away.
    host = "127.0.0.1" if answers.role is Role.ONE_MACHINE else "0.0.0.0"
    for unit in list_units(answers):
        role, _, instance = unit.name.partition("@")
        if role in _PORTS:
            yield f'{role}{f"-{instance}" if role == "mirror" else ""} = "{host}:{_PORTS[role]}"'


def _list_destinations(answers: HostAnswers) -> Iterator[str]:
    for kind in answers.destinations:
        if kind == "jsonlines":
            yield from ("", "[notifier.lines]", 'type = "jsonlines"', f'file = "{STATE}/notices.jsonl"')
        elif kind == "webhook":
            yield from ("", "[notifier.webhooks]", 'type = "webhook"', f'database = "{STATE}/webhooks.db"')
    for number, url in enumerate(answers.brokers):
        yield from (
            "",
            f"[notifier.pulse{f'-{number + 1}' if number else ''}]",
            'type = "pulse"',
            f"url = {_quote(url)}",
        )
        yield from (f"password = {{ file = {_quote(PASSWORD)} }}", 'exchange = "exchange/hgpushes/v2"')
        yield f"routing-key-strip-prefix = {_quote(answers.url)}"


def _quote(value: str | Iterable[str]) -> str:
    """Write a text, or a list of texts, as TOML has it."""
    return json.dumps(value if isinstance(value, str) else list(value), ensure_ascii=False)


def write_master_hgrc(answers: HostAnswers) -> str:
    """Return the hgrc of everything that writes to the master's repositories."""
    readers = "127.0.0.1" if answers.role is Role.ONE_MACHINE else COPIER
    settings = f"relay = {SOCKET}\nsnapshot-allow = {readers}\n\n[vcsreplicator-roots]\n{answers.repos} = .\n"
    return _HGRC.format(role="master", settings=settings, owner="root")


def write_mirror_hgrc() -> str:
    """Return the hgrc of a mirror and of all that serve its copies."""
    return _HGRC.format(role="mirror", settings="", owner=HG)


def write_script(programs: str) -> str:
    """Return the script `hg` of accounts that push, which gives them the master's hgrc."""
    command = f"{programs}/python -P -m hgext.vcsreplicator.hg.trusted"
    return f'#!/bin/sh\numask 002\nexport HGRCPATH="${{HGRCPATH-{MASTER_HGRC}}}"\nexec {command} "$@"\n'


def write_keys(answers: HostAnswers, programs: str) -> str:
    """Return the keys of mirrors, which may read and nothing else."""
    command = f"HGRCPATH={MASTER_HGRC}:{READ_ONLY_HGRC} {programs}/vcsreplicator ssh {answers.repos}"
    return "".join(f'restrict,command="{command}" {key}\n' for key in answers.mirror_keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUnit:
    """A unit of this machine, made from a packaged one.

    `lines` are for [Service]; the unit may write below the folders `writes`, and waits for them and for `reads`.
    """

    name: str
    packaged: str
    user: str
    writes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        kind, at, _ = self.name.partition("@")
        return f"{UNITS}/vcsreplicator-{kind}{at}.service"

    def write_additions(self) -> str:
        """Return what differs from the packaged unit."""
        mounts = " ".join((*self.writes, *self.reads))
        lines = ["[Unit]", f"RequiresMountsFor={mounts}"] if mounts else []
        lines += ["[Service]", f"User={self.user}", f"Group={self.user}", *self.lines]
        if mounts:  # in place of the packaged folders, which may be missing here
            state = "" if self.packaged == "web" else f" -{STATE}"
            folders = {"ReadWritePaths": " ".join(self.writes) + state, "ReadOnlyPaths": " ".join(self.reads)}
            lines += [f"{key}=" for key in folders] + [f"{key}={names}" for key, names in folders.items() if names]
        return "\n".join((*lines, ""))


def list_units(answers: HostAnswers) -> list[HostUnit]:
    """List the units of this machine in the order of their start."""
    logs = (folder,) if (folder := answers.log_folder) and folder != STATE else ()
    user, units = answers.services_user, list[HostUnit]()
    if answers.has_services:
        units.append(HostUnit(name="aggregator", packaged="aggregator", user=user, writes=logs))
    if answers.has_master:
        units.append(HostUnit(name="relay", packaged="relay", user=HG, writes=(answers.repos, *logs)))
    if answers.has_master and answers.has_mirror:
        at = OWN_MASTER.removeprefix("http://").rstrip("/")
        own = ("UMask=0007", "RestrictSUIDSGID=no", f"Environment=HGRCPATH={MASTER_HGRC}")
        lines = (*own, *_serve(answers.repos, at, "web-master"))
        units.append(HostUnit(name="web", packaged="web", user=HG, writes=(answers.repos,), lines=lines))
    if answers.has_services:
        units.append(HostUnit(name="notifier", packaged="notifier", user=user, writes=logs))
    if answers.has_mirror:
        writes, name = (answers.copies, *logs), answers.name
        units.append(HostUnit(name=f"mirror@{name}", packaged="mirror@", user=HG, writes=writes))
        web = f"web-{name}" if answers.has_master else "web"
        lines = _serve(answers.copies, "127.0.0.1:8080", f"web-{name}")
        units.append(HostUnit(name=web, packaged="web", user=WEB, reads=(answers.copies,), lines=lines))
        units.append(HostUnit(name=f"verify@{name}", packaged="verify@", user=HG, writes=writes))
    return units


def _serve(root: str, address: str, role: str) -> tuple[str, ...]:
    """Return the lines of a unit that serves a folder over HTTP."""
    command = f"{PACKAGED}/vcsreplicator web --root {root} --listen {address} --role {role}"
    return ("ExecStart=", f"ExecStart={command}")
