# SPDX-License-Identifier: GPL-2.0-or-later
"""A Mercurial extension that writes down what each step of a push costs in its server process: see `testing.bench.push`.

Named first in `[extensions]`, it sees the others load. At its end the process appends one line of JSON, step → milliseconds, to the
file `PUSH_STEPS`. The modules of the steps are loaded beforehand, so a step is what it does.
"""

import atexit
import functools
import importlib
import json
import os
import time
from collections.abc import Callable
from typing import Any

from mercurial import extensions

testedwith = b"7.2"

LOADING, MODULES = "load the extensions", "load what a push uses besides"
# (what it does, where the function is); in the order of a push
STEPS = (
    ("open the repository", "hgext.vcsreplicator.hg.registration", "reposetup"),
    ("before the transaction", "hgext.vcsreplicator.hg.master.capture", "compare_and_begin"),
    ("call the relay", "hgext.vcsreplicator.relay.client", "RelayLine.open"),
    ("pushlog: rows into SQLite", "pushlog.recording", "record"),
    ("sync the journal", "hgext.vcsreplicator.hg.master.durability", "sync_journal"),
    ("pushlog: append to its file", "pushlog.store.session", "PushlogTransaction._finalize"),
    ("the event, appended to the outbox", "hgext.vcsreplicator.hg.master.capture", "Capture.finalize"),
    ("… of it, sync what was touched", "hgext.vcsreplicator.hg.master.durability", "before_outbox"),
    ("… of it, sync the outbox", "hgext.vcsreplicator.hg.master.durability", "after_outbox"),
    ("after the commit", "hgext.vcsreplicator.hg.master.reporting", "finish_commit"),
    ("pushlog: commit SQLite", "pushlog.store.session", "PushlogTransaction._commit"),
    ("what is left of the wait for the log's word", "hgext.vcsreplicator.hg.master.reporting", "report"),
)

spent: dict[str, float] = {}


def timed(step: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*arguments: Any, **keywords: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*arguments, **keywords)
        finally:
            spent[step] = spent.get(step, 0.0) + (time.perf_counter() - started) * 1000

    return run


def write() -> None:
    with open(os.environ["PUSH_STEPS"], "a", encoding="ascii") as file:
        file.write(json.dumps(spent) + "\n")


def uisetup(ui: Any) -> None:
    atexit.register(write)


def extsetup(ui: Any) -> None:
    started = time.perf_counter()
    found = [(step, *place(where, name)) for step, where, name in STEPS]
    spent[MODULES] = (time.perf_counter() - started) * 1000
    for step, owner, last in found:
        function = owner.__dict__[last]
        if isinstance(function, classmethod):
            setattr(owner, last, classmethod(timed(step, function.__func__)))
        else:
            setattr(owner, last, timed(step, function))


def place(where: str, name: str) -> tuple[Any, str]:
    """The module or class that has the function, and the function's name in it."""
    owner: Any = importlib.import_module(where)
    *outer, last = name.split(".")
    for part in outer:
        owner = getattr(owner, part)
    getattr(owner, last)  # now the module is really loaded
    return owner, last


extensions.load = timed(LOADING, extensions.load)
