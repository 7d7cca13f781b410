# SPDX-License-Identifier: GPL-2.0-or-later
"""The system as a process meets it on a sick disk, or as another user; also where the tests run as root."""

import contextlib
import os
import pkgutil
import socket
import sys
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import pytest


class Fault:
    """Calls that fail until the end of the block, or of the test; `paths` are those at which any did."""

    def __init__(self, number: int, at: str, times: int) -> None:
        self._number, self._at, self._times = number, at, times
        self.paths: list[str] = []

    def __enter__(self) -> "Fault":
        return self

    def __exit__(self, *_: object) -> None:
        self._times = 0

    def wrap(self, call: Callable[..., object]) -> Callable[..., object]:
        """Return a function that fails where a path fits, and else calls this one."""

        def calling(*given: object, **named: object) -> object:
            found = next((path for path in _find_paths(given) if fnmatchcase(path, self._at)), None)
            if found is None or len(self.paths) >= self._times:
                return call(*given, **named)
            self.paths.append(found)
            names = [each for each in given[:2] if not isinstance(each, int)]
            raise OSError(self._number, os.strerror(self._number), *names[:1], *([None, names[1]] if names[1:] else []))

        return calling


class System:
    """What this process asks of the system; all is as before at the end of the test."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def refuse(self, number: int, *calls: str, at: str = "*", times: int = sys.maxsize) -> Fault:
        """Have calls, such as `os.rename`, fail so many times with this error.

        The pattern `at` fits one of the paths that the call gets, or the path of an open file.
        """
        fault = Fault(number, at, times)
        for call in calls:
            self._patch.setattr(call, fault.wrap(pkgutil.resolve_name(call)))
        return fault

    def watch(self, act: Callable[[str], object], *calls: str, at: str = "*") -> None:
        """Have `act` run before each of these calls at a path that fits `at`; it gets the path."""
        for call in calls:
            self._patch.setattr(call, _precede(pkgutil.resolve_name(call), act, at))

    def become(self, user: int) -> None:
        """Be this user, as far as the process asks who it is."""
        self._patch.setattr("os.geteuid", lambda: user)

    def name_hosts(self, find: Callable[[str], Sequence[str] | None]) -> list[str]:
        """Give the name of a host the addresses that `find` returns, its own for None; return a list of the names asked for."""
        asked, resolve = list[str](), socket.getaddrinfo

        def getaddrinfo(host: str, port: int, *more: Any, **options: Any) -> Any:
            asked.append(host)
            found = find(host)
            if found is None:
                return resolve(host, port, *more, **options)
            return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port)) for address in found]

        self._patch.setattr(socket, "getaddrinfo", getaddrinfo)
        return asked

    def name_machine(self, name: str, full: str = "") -> None:
        """Give this machine a name, and a full one, by default the same."""
        self._patch.setattr(socket, "gethostname", lambda: name)
        self._patch.setattr(socket, "getfqdn", lambda: full or name)

    def measure_disks(self, measure: Callable[[str], object | None]) -> None:
        """Give the disk of a folder the state that `measure` returns, its own for None."""
        read = os.statvfs
        self._patch.setattr(os, "statvfs", lambda folder: measure(os.fsdecode(folder)) or read(folder))

    def note_owners(self) -> list[tuple[str, int, int]]:
        """Give no open file to another user; return a list of what would be given: path, user and group."""
        given: list[tuple[str, int, int]] = []
        self._patch.setattr("os.fchown", lambda *asked: given.append((_find_paths(asked)[0], *asked[1:])))
        return given


def _precede(call: Callable[..., object], act: Callable[[str], object], at: str) -> Callable[..., object]:
    def calling(*given: object, **named: object) -> object:
        found = next((path for path in _find_paths(given) if fnmatchcase(path, at)), None)
        if found is not None:
            act(found)
        return call(*given, **named)

    return calling


def _find_paths(given: tuple[object, ...]) -> list[str]:
    """Return the paths that a call got, one or two; "" in place of none."""
    paths = [os.fsdecode(each) for each in given[:2] if isinstance(each, str | bytes | os.PathLike)]
    if given and isinstance(given[0], int):
        with contextlib.suppress(OSError):
            return [os.readlink(f"/proc/self/fd/{given[0]}")]
    return paths or [""]
