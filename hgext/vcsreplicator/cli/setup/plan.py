# SPDX-License-Identifier: GPL-2.0-or-later
"""The steps that make a host, as data: from the answers and from what was found, without input or output."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from ...config import DEFAULT_FILE
from ...words.errors import visible
from . import texts
from .answers import HG, STATE, HostAnswers, Role

# The homes of users that setup makes with one.
HOMES = {HG: f"{STATE}-hg", texts.COPIER: f"{STATE}-mirrors"}


@dataclass(frozen=True, slots=True)
class MakeUser:
    """A user of the system, with a group of its own."""

    name: str
    groups: tuple[str, ...] = ()

    def command(self) -> tuple[str, ...]:
        home = ("--home-dir", HOMES[self.name]) if self.name in HOMES else ()
        return (
            "useradd",
            "--system",
            "--user-group",
            *home,
            *(("--groups", *self.groups) if self.groups else ()),
            self.name,
        )


@dataclass(frozen=True, slots=True)
class JoinGroup:
    """An account of a developer, who may write to the repositories."""

    account: str

    def command(self) -> tuple[str, ...]:
        return ("usermod", "-a", "-G", HG, self.account)


@dataclass(frozen=True, slots=True)
class MakeFolder:
    """A folder with its owner, also its group, and mode."""

    path: str
    owner: str
    mode: int

    def command(self) -> tuple[str, ...]:
        return ("install", "-d", "-o", self.owner, "-g", self.owner, "-m", f"{self.mode:04o}", self.path)


@dataclass(frozen=True, slots=True)
class WriteFile:
    """A file of root's."""

    path: str
    text: str
    mode: int = 0o644


@dataclass(frozen=True, slots=True)
class GiveSecret:
    """A file that exists, which only this user may read."""

    path: str
    owner: str

    def command(self) -> tuple[str, ...]:
        return ("chown", f"{self.owner}:{self.owner}", self.path)


@dataclass(frozen=True, slots=True)
class RunCommand:
    """A command of root, or of `user`; not needed if `unless` succeeds.

    `waits_for` repositories must be in the log before. A command that `is_look` changes nothing.
    """

    words: tuple[str, ...]
    user: str = "root"
    unless: tuple[str, ...] = ()
    waits_for: int = 0
    is_look: bool = False

    def command(self) -> tuple[str, ...]:
        return self.words if self.user == "root" else ("sudo", "-u", self.user, *self.words)


@dataclass(frozen=True, slots=True)
class GiveRights:
    """Rights on repositories below `root`; `shown` is the command for an operator."""

    root: str
    folders: tuple[str, ...]
    shown: str

    def command(self) -> tuple[str, ...]:
        return tuple(shlex.split(self.shown))


SetupStep = MakeUser | JoinGroup | MakeFolder | WriteFile | GiveSecret | GiveRights | RunCommand


def describe(step: SetupStep) -> str:
    """Return what an operator would type in place of the step."""
    return visible(f"write {step.path}" if isinstance(step, WriteFile) else shlex.join(step.command()))


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundHost:
    """What the machine has.

    `programs` is the folder of `vcsreplicator` and `hg`, `units` the packaged units by name, `known_units` the units that a package
    of the distribution gave to systemd, `repositories` how many can be replicated. `lacking` are the steps that give these the
    rights that they need. `home` is that of the user HG; `has_key` says whether master and mirror can know each other's keys.
    """

    programs: str
    units: Mapping[str, str]
    known_units: Mapping[str, str] = field(default_factory=dict)
    repositories: int = 0
    lacking: tuple[GiveRights, ...] = ()
    has_key: bool = True
    home: str = HOMES[HG]


def key_file(home: str) -> str:
    """Return the file of the key with which a mirror copies over SSH."""
    return f"{home}/.ssh/id_ed25519"


def make_plan(answers: HostAnswers, found: FoundHost, *, with_systemd: bool) -> list[SetupStep]:
    """List the steps in their order; each can be repeated."""
    steps = [*_list_users(answers), *_list_folders(answers, found), *found.lacking, *_list_files(answers, found)]
    return [*steps, *_list_commands(answers, found, with_systemd=with_systemd)]


def _list_users(answers: HostAnswers) -> Iterator[SetupStep]:
    if answers.has_master or answers.has_mirror:
        yield MakeUser(HG)
    if answers.has_services and answers.services_user != HG:
        yield MakeUser(answers.services_user)
    if answers.has_mirror:
        yield MakeUser(texts.WEB)
    if answers.role is Role.MASTER:
        yield MakeUser(texts.COPIER, (HG,))
    if answers.has_master:
        yield from map(JoinGroup, answers.developers)


def _list_folders(answers: HostAnswers, found: FoundHost) -> Iterator[SetupStep]:
    yield MakeFolder("/etc/mercurial", "root", 0o755)
    if answers.has_master:
        yield MakeFolder(answers.repos, HG, 0o2775)
    if answers.has_mirror:
        yield MakeFolder(answers.copies, HG, 0o755)
    if answers.has_services:
        yield MakeFolder(STATE, answers.services_user, 0o750 if answers.is_embedded else 0o711)
    if (folder := answers.log_folder) and folder != STATE:
        yield MakeFolder(folder, HG, 0o750)
    if answers.copies_over_ssh:
        if found.home == HOMES[HG]:  # not that of a user who was there
            yield MakeFolder(found.home, HG, 0o700)
        yield MakeFolder(f"{found.home}/.ssh", HG, 0o700)
    if answers.role is Role.MASTER:
        # They are root's, so that a mirror's key cannot change which keys there are.
        yield MakeFolder(HOMES[texts.COPIER], "root", 0o755)
        yield MakeFolder(f"{HOMES[texts.COPIER]}/.ssh", "root", 0o755)


def _list_files(answers: HostAnswers, found: FoundHost) -> Iterator[SetupStep]:
    yield WriteFile(DEFAULT_FILE, texts.write_services_file(answers))
    if answers.has_master:
        yield WriteFile(texts.MASTER_HGRC, texts.write_master_hgrc(answers))
        yield WriteFile("/usr/local/bin/hg", texts.write_script(found.programs), 0o755)
    if answers.has_mirror:
        yield WriteFile(texts.MIRROR_HGRC, texts.write_mirror_hgrc())
    if answers.role is Role.MASTER:
        yield WriteFile(texts.READ_ONLY_HGRC, texts.READ_ONLY)
        yield WriteFile(f"{HOMES[texts.COPIER]}/.ssh/authorized_keys", texts.write_keys(answers, found.programs))
    if answers.brokers:
        yield GiveSecret(texts.PASSWORD, answers.services_user)
    for unit in texts.list_units(answers):
        packaged, additions = found.units[f"vcsreplicator-{unit.packaged}.service"], unit.write_additions()
        for path, text in ((unit.file, packaged), (f"{unit.file}.d/10-setup.conf", additions)):
            here = text.replace(f"{texts.PACKAGED}/", f"{found.programs}/")
            # A copy would hide the unit of the package's next release.
            if here != found.known_units.get(PurePath(path).name):
                yield WriteFile(path, here)


def _list_commands(answers: HostAnswers, found: FoundHost, *, with_systemd: bool) -> Iterator[SetupStep]:
    own = f"{found.programs}/vcsreplicator"
    if answers.has_services:
        yield RunCommand((own, "topics", "create"), answers.user, unless=(own, "topics", "check"))
    if answers.copies_over_ssh:
        make_key = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key_file(found.home))
        yield RunCommand(make_key, HG, unless=("test", "-f", key_file(found.home)))
    if not (answers.has_master or answers.has_mirror):
        yield RunCommand((own, "config", "check"), answers.user, is_look=True)
    for hgrc, is_needed in ((texts.MASTER_HGRC, answers.has_master), (texts.MIRROR_HGRC, answers.has_mirror)):
        if is_needed:
            yield RunCommand((own, "config", "check", "--hgrc", hgrc), HG, is_look=True)
    if not found.has_key or not with_systemd:
        return
    for unit in texts.list_units(answers):
        name = f"vcsreplicator-{unit.name}"
        is_running = ("systemctl", "is-active", "--quiet", name)
        if unit.packaged == "mirror@":
            # It adds the mirror to the roster, even if there is nothing to copy.
            yield RunCommand((own, "bootstrap", answers.name), HG, unless=is_running, waits_for=found.repositories)
        yield RunCommand(("systemctl", "enable", "--now", name), unless=is_running)
