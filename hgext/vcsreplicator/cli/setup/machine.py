# SPDX-License-Identifier: GPL-2.0-or-later
"""The machine that `setup` changes, step by step, and the record of what it made.

The record is written before each step, so that a setup that is killed at any instant can be repeated, and taken back. It names no
repository and no data: `undo` leaves a folder that is not empty, a file that was changed since, and the users who own them.
"""

import contextlib
import difflib
import grp
import hashlib
import json
import os
import pwd
import shlex
import stat
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...log.blobs import sync_folder
from ...log.ownership import name_group, name_user
from ...words import shape
from ...words.errors import BadConfig, MalformedEvent, Refused, counted
from ..rights import give_repository
from .answers import HG, HostAnswers
from .plan import GiveRights, GiveSecret, JoinGroup, MakeFolder, MakeUser, RunCommand, SetupStep, WriteFile

RECORD = "/etc/vcsreplicator/setup.json"
# Bytes of a record, at most; more than any setup writes.
_RECORD_LIMIT = 1 << 20
# Seconds in which the relay must have announced all repositories that were there.
PATIENCE = 600.0
# Seconds that a command may take which changes nothing: it may read a pipe that another user put there.
LOOK_PATIENCE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _SetupRecord:
    """The answers of the newest run, and what runs made.

    `made` has kind and name, such as `file /etc/vcsreplicator.toml`, with the digest of a file's content.
    """

    answers: HostAnswers | None = None
    made: Mapping[str, str] = field(default_factory=dict)


class Machine:
    """This machine; with a prefix, the folder in which a later root finds its files.

    Below a prefix only folders and files are made, with the rights of this user: users and commands are left out.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix.rstrip("/")
        record = self._read_record()
        # The answers of the last run, and what was made: kind and name, with the digest of a file.
        self.answers, self.made = record.answers, dict(record.made)

    @property
    def has_prefix(self) -> bool:
        return bool(self._prefix)

    def place(self, path: str) -> Path:
        return Path(f"{self._prefix}{path}")

    def find_unknown(self, accounts: Sequence[str]) -> list[str]:
        """Return the accounts that this machine lacks; none with a prefix, which leaves out users."""
        return [] if self._prefix else [each for each in accounts if not _finds(pwd.getpwnam, each)]

    def find_difference(self, step: SetupStep) -> str | None:
        """Return "" if the step is still to do, None if nothing is, else what is there in its place."""
        match step:
            case MakeUser():
                return None if self._prefix or has_user(step.name) else ""
            case JoinGroup():
                return None if self._prefix or _is_member(step.account) else ""
            case MakeFolder():
                return self._compare_rights(step.path, step.owner, step.mode)
            case GiveSecret():
                return None if self._prefix else self._compare_rights(step.path, step.owner, 0o600) and ""
            case GiveRights():
                return None if self._prefix else ""
            case WriteFile():
                return self._compare_file(step)
            case RunCommand():
                return None if self._prefix or (step.unless and succeeds(step.unless, step.user)) else ""

    def is_ours(self, step: SetupStep) -> bool:
        """Return whether a setup wrote this file, and nothing changed it since."""
        if not isinstance(step, WriteFile):
            return False
        return self.made.get(f"file {step.path}") == _digest(self.place(step.path).read_bytes())

    def perform(self, step: SetupStep) -> None:
        """Do the step; raises Refused with the command that failed, OSError."""
        match step:
            case MakeUser():
                self._note(f"user {step.name}")
                _run(step.command())
            case JoinGroup():
                self._note(f"member {step.account}")
                _run(step.command())
            case MakeFolder():
                self._make_folder(step)
            case WriteFile():
                self._note(f"file {step.path}", _digest(step.text.encode()))
                _write_file(self.place(step.path), step.text, step.mode)
            case GiveRights():
                for folder in step.folders:
                    give_repository(step.root, folder, *find_owner(HG))
            case GiveSecret():
                os.chmod(step.path, 0o600)
                _run(step.command())
            case RunCommand():
                if step.words[:2] == ("systemctl", "enable"):
                    self._note(f"unit {step.words[-1]}")
                if step.waits_for:
                    _wait_for_repositories(step)
                _run(step.words, step.user)

    def keep_answers(self, answers: HostAnswers) -> None:
        """Record the answers for the next run."""
        self.answers = answers
        self._save()

    def undo(self, report: Callable[[str], object]) -> None:
        """Take back what setups made, the newest first; report each step.

        What is kept stays in the record. Raises Refused with the command that failed.
        """
        for key in reversed(list(self.made)):
            kind, _, name = key.partition(" ")
            if reason := self._take_back(kind, name, self.made[key]):
                report(f"left: {key}: {reason}")
                continue
            report(f"removed: {key}")
            del self.made[key]
            self._save()
        if not self.made:
            self.place(RECORD).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # missing, or it has files of others
                self.place(RECORD).parent.rmdir()

    def _take_back(self, kind: str, name: str, digest: str) -> str:
        """Take back one thing, and return why it is kept instead."""
        place = self.place(name)
        if kind == "unit" and not self._prefix:
            _run(("systemctl", "disable", "--now", name))
        elif kind == "file" and place.exists():
            if _digest(place.read_bytes()) != digest:
                return "it was changed since"
            place.unlink()
            if place.parent.suffix == ".d":
                with contextlib.suppress(OSError):  # it has files of others
                    place.parent.rmdir()
        elif kind == "folder" and place.is_dir():
            if any(place.iterdir()):
                return "it is not empty"
            try:
                place.rmdir()
            except OSError as error:  # a link, which the user of the folder above it may have put there
                return str(error.strerror)
        elif kind == "user" and has_user(name):
            if any(folder.is_dir() and folder.owner() == name for folder in self._list_folders()):
                return "it owns folders that are left"
            _run(("userdel", name))
        elif kind == "member" and _is_member(name):
            _run(("gpasswd", "-d", name, HG))
        return ""

    def _list_folders(self) -> list[Path]:
        """List the folders that setup made, and those of repositories."""
        made = [key.removeprefix("folder ") for key in self.made if key.startswith("folder ")]
        return [
            self.place(path) for path in (*made, *((self.answers.repos, self.answers.copies) if self.answers else ()))
        ]

    def _read_record(self) -> _SetupRecord:
        place = self.place(RECORD)
        try:
            return shape.from_json(_SetupRecord, place.read_bytes(), limit=_RECORD_LIMIT)
        except FileNotFoundError:
            return _SetupRecord()
        except (MalformedEvent, OSError) as error:
            raise BadConfig(f"{place}: {error}: expected what setup wrote; move it away") from error

    def _note(self, key: str, digest: str = "") -> None:
        if self.made.get(key) != digest:
            self.made[key] = digest
            self._save()

    def _save(self) -> None:
        place = self.place(RECORD)
        place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        _write_file(
            place, json.dumps(shape.plain(_SetupRecord(answers=self.answers, made=self.made)), indent=2) + "\n", 0o600
        )

    def _make_folder(self, step: MakeFolder) -> None:
        place = self.place(step.path)
        try:
            if not place.exists():
                self._note(f"folder {step.path}")
            folder = _open_made(self._prefix or "/", step.path)
        except OSError as error:
            raise Refused(
                f"setup: {place}: {error.strerror}; expected a folder, not a link; move it away, then repeat setup"
            ) from error
        try:
            if not self._prefix:
                os.fchown(folder, *find_owner(step.owner))
            os.fchmod(folder, step.mode)
        finally:
            os.close(folder)

    def _compare_rights(self, path: str, owner: str, mode: int) -> str | None:
        try:
            found = os.stat(self.place(path))
        except FileNotFoundError:
            return ""
        have = f"{stat.S_IMODE(found.st_mode):04o}"
        expected = f"{mode:04o}"
        if not self._prefix:
            have = f"{name_user(found.st_uid)}:{name_group(found.st_gid)} {have}"
            expected = f"{owner}:{owner} {expected}"
        return None if have == expected else f"{path}: {have}, expected {expected}"

    def _compare_file(self, step: WriteFile) -> str | None:
        place = self.place(step.path)
        try:
            found = place.read_text(encoding="utf-8", errors="backslashreplace")
        except FileNotFoundError:
            return ""
        lines = difflib.unified_diff(
            found.splitlines(), step.text.splitlines(), step.path, "as setup writes it", lineterm=""
        )
        return "\n".join(lines) or None


def _open_made(top: str, path: str) -> int:
    """Open a folder below `top`, having made what is missing of it, for the caller to close.

    A link is followed only above it, and where this user alone may have made it. Raises OSError.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    folder, names = os.open(top, flags), [name for name in path.split("/") if name]
    for number, name in enumerate(names, 1):
        try:
            about = os.fstat(folder)
            is_own = about.st_uid == os.geteuid() and not about.st_mode & 0o022
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=folder)
            follows = 0 if is_own and number < len(names) else os.O_NOFOLLOW
            inner = os.open(name, flags | follows, dir_fd=folder)
        finally:
            os.close(folder)
        folder = inner
    return folder


def find_owner(name: str) -> tuple[int, int]:
    """Return the numbers of a user and of the group of the same name; raises KeyError."""
    return pwd.getpwnam(name).pw_uid, grp.getgrnam(name).gr_gid


def has_user(name: str) -> bool:
    """Return whether there is a user with a group of the same name."""
    return _finds(pwd.getpwnam, name) and _finds(grp.getgrnam, name)


def _finds(look_up: Callable[[str], object], name: str) -> bool:
    try:
        look_up(name)
    except KeyError:
        return False
    return True


def _is_member(account: str) -> bool:
    return _finds(grp.getgrnam, HG) and account in grp.getgrnam(HG).gr_mem


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write_file(place: Path, text: str, mode: int) -> None:
    """Replace a file in one step, durably; it is whole or as before."""
    place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    made = place.with_name(f".{place.name}.setup")
    made.unlink(missing_ok=True)
    with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    made.rename(place)
    sync_folder(place.parent)


def succeeds(words: tuple[str, ...], user: str = "root") -> bool:
    """Return whether a command ends with 0; False also if it or the user is missing, and if it does not end."""
    try:
        done = subprocess.run(
            words, **_as_user(user), capture_output=True, stdin=subprocess.DEVNULL, check=False, timeout=LOOK_PATIENCE
        )
    except (KeyError, OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _run(words: tuple[str, ...], user: str = "root") -> None:
    """Run a command with the rights and the home of a user; raise Refused if it fails."""
    try:
        done = subprocess.run(words, **_as_user(user), stdin=subprocess.DEVNULL, check=False)
    except OSError as error:
        raise Refused(f"setup: {shlex.join(words)}: {error.strerror}; when it runs, repeat setup") from error
    if done.returncode:
        raise Refused(f"setup: {shlex.join(words)} ended with {done.returncode}; remove the cause, then repeat setup")


def _as_user(user: str) -> dict[str, Any]:
    """Return what gives a process the rights of a user; raises KeyError.

    The process has a session of its own: in root's it could type on root's terminal.
    """
    if user == "root":
        return {}
    found = pwd.getpwnam(user)
    path = os.environ.get("PATH", os.defpath)
    environment = {"PATH": path, "HOME": found.pw_dir, "USER": user, "LOGNAME": user, "LC_ALL": "C.UTF-8"}
    rights = {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": os.getgrouplist(user, found.pw_gid)}
    return {**rights, "cwd": "/", "env": environment, "start_new_session": True}


def _wait_for_repositories(step: RunCommand) -> None:
    """Wait until the relay has announced the repositories that were there.

    Raises Refused after PATIENCE: what is missing then is copied after its first push.
    """
    words, end = (step.words[0], "status", "--json"), time.monotonic() + PATIENCE
    while True:
        done = subprocess.run(words, **_as_user(step.user), capture_output=True, stdin=subprocess.DEVNULL, check=False)
        count = len(json.loads(done.stdout)["repositories"]) if done.returncode == 0 else 0
        if count >= step.waits_for:
            return
        if time.monotonic() >= end:
            raise Refused(
                f"setup: the log has {count} of {counted(step.waits_for, 'repository')} after {PATIENCE:g} s; "
                "vcsreplicator check says why; then repeat setup"
            )
        time.sleep(1)
