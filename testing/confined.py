# SPDX-License-Identifier: GPL-2.0-or-later
"""Run a command as a systemd unit confines it: `python -m testing.confined UNIT COMMAND …`.

It applies what a unit says of system calls, executable memory, address families, core files and the umask, where no systemd runs.
Users, folders and namespaces are the machine's. It needs libseccomp and systemd-analyze, which are parts of systemd's package.
"""

import ctypes
import errno
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# Of prctl(2), with their arguments.
PR_SET_NO_NEW_PRIVS, PR_SET_MDWE = 38, 65

# Of seccomp(3).
SCMP_ACT_ALLOW = 0x7FFF0000
SCMP_CMP_EQ = 4


def refuse_with(number: int) -> int:
    """The action of seccomp that fails with this error number."""
    return 0x00050000 | number


class Comparison(ctypes.Structure):
    """A comparison of an argument: `struct scmp_arg_cmp` of seccomp_rule_add(3)."""

    _fields_ = [
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    ]


def read_values(unit: Path, key: str) -> list[str]:
    """Return each value of a key in the unit, in order; keys may repeat."""
    lines = [line.partition("=") for line in unit.read_text().splitlines()]
    return [value for name, _, value in lines if name == key]


def calls_of(names: str) -> Iterator[str]:
    """Yield the system calls that a list of names and of systemd's groups stands for."""
    for name in names.split():
        if not name.startswith("@"):
            yield name
            continue
        asked = subprocess.run(["systemd-analyze", "syscall-filter", name], capture_output=True, text=True, check=True)
        members = [line.strip() for line in asked.stdout.splitlines()[1:] if line.startswith("    ")]
        yield from calls_of(" ".join(member for member in members if not member.startswith("#")))


def allowed_calls(unit: Path) -> set[str]:
    """Return the system calls that the unit allows, as its lines add and take them away."""
    allowed: set[str] = set(calls_of("@default"))
    for line in read_values(unit, "SystemCallFilter"):
        calls = set(calls_of(line.removeprefix("~")))
        allowed = allowed - calls if line.startswith("~") else allowed | calls
    return allowed


def confine(unit: Path) -> None:
    """Confine this process, and all that it starts, as the unit says; raise OSError where the machine cannot."""
    library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    families = [getattr(socket, name) for line in read_values(unit, "RestrictAddressFamilies") for name in line.split()]
    calls = allowed_calls(unit)
    rules = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(refuse_with(errno.EPERM))))
    for call in calls - {"socket"}:
        number = library.seccomp_syscall_resolve_name(call.encode())
        if number >= 0:
            library.seccomp_rule_add(rules, ctypes.c_uint32(SCMP_ACT_ALLOW), number, 0)
    number = library.seccomp_syscall_resolve_name(b"socket")
    for family in families:
        is_family = Comparison(0, SCMP_CMP_EQ, family, 0)
        library.seccomp_rule_add(rules, ctypes.c_uint32(SCMP_ACT_ALLOW), number, 1, is_family)
    libc = ctypes.CDLL(None, use_errno=True)
    for option in (
        PR_SET_NO_NEW_PRIVS,
        *([PR_SET_MDWE] if read_values(unit, "MemoryDenyWriteExecute") == ["yes"] else []),
    ):
        if libc.prctl(option, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl {option} failed")
    if read_values(unit, "LimitCORE") == ["0"]:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(int(read_values(unit, "UMask")[0], 8))
    if failure := library.seccomp_load(rules):
        raise OSError(-failure, "seccomp_load failed")


if __name__ == "__main__":
    confine(Path(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
