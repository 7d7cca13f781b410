# SPDX-License-Identifier: GPL-2.0-or-later
"""Our services and workers for tests, without what each start repeats: a fork of a Python that has imported everything.

    with warm_starts():
        process = subprocess.Popen([sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", "mirror", …])

In the block `subprocess.Popen` asks a process that waits for this, the stem, which has imported our modules and run none. The
new process is a child of the caller, as always: it has its own id, exit code, process group, environment, folder and descriptors.
A service that is started so starts its workers so. Any other command is started as always, and also ours where the environment
changes what Python imports. Not for tests of starts: what is imported, from where, and what a start reads.
"""

import array
import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hgext.vcsreplicator.demo.supervisor import leashed
from testing.warm_hg import read_umask

PROGRAM = [sys.executable, "-P", "-m"]
CLI, WORKER = "hgext.vcsreplicator.cli", "hgext.vcsreplicator.hg.replica.worker"
NURSERY, WEB_NURSERY = "hgext.vcsreplicator.hg.replica.nursery", "hgext.vcsreplicator.cli.web_nursery"
# Modules that may be run warm.
OURS = (
    CLI,
    WORKER,
    NURSERY,
    WEB_NURSERY,
    "testing.builders.notifier.decoder_process",
    "testing.builders.master.guarded_web",
    "testing.builders.notifier.notifier_process",
)
# What each of our processes imports in the end. The modules that are run are not here: they are imported when they run.
USED = (
    "hgext.vcsreplicator.cli.verbs",
    "hgext.vcsreplicator.config",
    "hgext.vcsreplicator.service",
    "hgext.vcsreplicator.log.kafka",
    "hgext.vcsreplicator.log.kafka.broker",
    "hgext.vcsreplicator.log.sqlite.adapter",
    "hgext.vcsreplicator.hg.master.offer",
    "hgext.vcsreplicator.hg.registration",
    "hgext.vcsreplicator.hg.relaying",
    "hgext.vcsreplicator.hg.serving.budget",
    "hgext.vcsreplicator.hg.serving.web",
    "hgext.vcsreplicator.mirror.service",
    "hgext.vcsreplicator.relay.daemon",
    "hgext.vcsreplicator.aggregator.loop",
    "hgext.vcsreplicator.status.follower",
    "hgext.vcsreplicator.status.health",
    "notifier.publishing.courier",
    "notifier.destinations.jsonlines",
    "notifier.publishing.publisher",
    "pushlog.revsets",
    "pushlog.web.commands",
    "pushlog.web.page",
    "pushlog.web.seam",
    "pushlog.web.waiting",
    "pushlog.wire",
)
# What Mercurial imports for a worker, the relay and hgweb; a version may lack some, or import one only after others.
OF_MERCURIAL = (
    "encodings.idna",
    "mercurial.admin.chainsaw",
    "mercurial.admin_commands",
    "mercurial.bundle2_part_handlers",
    "mercurial.cmd_impls.clone",
    "mercurial.commands",
    "mercurial.debugcommands",
    "mercurial.hgweb.hgweb_mod_inner",
    "mercurial.hgweb.hgwebdir_mod_inner",
    "mercurial.hgweb.server",
    "mercurial.httppeer",
    "mercurial.initialization",
    "mercurial.merge",
    "mercurial.repo.factory",
    "mercurial.repocache",
    "mercurial.revset_predicates",
    "mercurial.shelve",
    "mercurial.sshpeer",
    "mercurial.statichttprepo",
    "mercurial.strip",
    "mercurial.subrepo",
    "mercurial.templatekw",
    "mercurial.unionrepo",
    "mercurial.wireprotoserver",
    "tarfile",
    "wsgiref.validate",
    "xml.dom.minidom",
)
# What some commands import besides, by words of theirs: a stem imports it before it forks the first.
OF_SOME = {
    "work": ("notifier.clients.amqp.channel", "notifier.services.work.worker"),
    "--parallel": ("celery.bin.worker", "notifier.services.work.tasks"),
    "poll": ("notifier.clients.amqp.channel",),
    "notifier": ("notifier.clients.amqp.channel", "notifier.destinations.webhook.destination"),
}
# The options of `Popen` that the stem knows nothing of, as they are when a caller does not set them.
DEFAULTS = {
    "executable": None,
    "preexec_fn": None,
    "shell": False,
    "close_fds": True,
    "restore_signals": True,
    "gid": None,
    "gids": None,
    "uid": None,
    "umask": -1,
    "process_group": -1,
}
# Counts the lines of a process, and kills at one, if its environment says so by this variable.
STEPPING, STEPS = Path(__file__).parent / "faults" / "stepping" / "sitecustomize.py", "VCSREPLICATOR_TEST_STEPS"
# The name that the system shows for it.
STEM = "stem"
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15

_plain_popen = subprocess.Popen


@contextlib.contextmanager
def warm_starts() -> Iterator[None]:
    """Start our processes warm in this block, in all threads."""
    _stem()  # by this thread: its processes are children of the one that started it
    before = subprocess.Popen
    subprocess.Popen = WarmPopen  # type: ignore[misc]
    try:
        yield
    finally:
        subprocess.Popen = before  # type: ignore[misc]


class WarmPopen(_plain_popen):  # type: ignore[type-arg]
    """A `Popen` that forks from the stem if the command is one of our own."""

    def _execute_child(self, *given: Any) -> None:
        names = _plain_popen._execute_child.__code__.co_varnames[1 : len(given) + 1]  # type: ignore[attr-defined]
        options = dict(zip(names, given, strict=True))
        leash, command = _without_leash(options["args"])
        environment = dict(os.environ if options["env"] is None else options["env"])
        is_plain = all(options[name] == value for name, value in DEFAULTS.items())
        stem = self.find_stem(command, environment) if is_plain else None
        if stem is None:
            super()._execute_child(*given)  # type: ignore[misc]
            return
        streams = [options["p2cread"], options["c2pwrite"], options["errwrite"]]
        numbers = {number: number if stream == -1 else stream for number, stream in enumerate(streams)}
        numbers |= {number: number for number in options["pass_fds"]}
        request = {
            "module": command[3],
            "arguments": command[4:],
            "environment": environment,
            "folder": os.fspath(options["cwd"] or os.getcwd()),
            "umask": read_umask(),
            "has_session": options["start_new_session"],
            "leash": leash,
            "descriptors": list(numbers),
        }
        self.pid = stem.start(request, list(numbers.values()))
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(options[end] for end in ends))  # type: ignore[attr-defined]

    def find_stem(self, command: Sequence[str], environment: Mapping[str, str]) -> "Stem | None":
        """What forks this command; None if it is to start cold."""
        return _stem() if _is_ours(command, environment) else None


def _without_leash(arguments: Any) -> tuple[int | None, list[str]]:
    """The process whose end asks the command to stop, None if there is none; and the command."""
    words = list(map(os.fspath, arguments)) if isinstance(arguments, Sequence) else []
    leash = leashed([])
    if words[: len(leash)] == leash:
        return int(leash[-1]), words[len(leash) :]
    return None, words


def _is_ours(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a cold start of the command would import what the stem has imported."""
    names = {name for name in {*environment, *os.environ} if name.startswith(("PYTHON", "LD_", "HGMODULEPOLICY"))}
    # PYTHON is not Python's but make's, which exports what it was given.
    names -= {"PYTHON", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"}
    names -= {"PYTHONPATH", "PYTHONHASHSEED"} if STEPS in environment else set()
    return (
        command[:3] == PROGRAM
        and command[3] in OURS
        and environment.get("HGENCODING", "").upper() == "UTF-8"
        and all(environment.get(name) == os.environ.get(name) for name in names)
    )


def is_stem(process: int) -> bool:
    """Whether this process only starts others."""
    try:
        return Path(f"/proc/{process}/comm").read_text().strip() == STEM
    except OSError:  # it ended
        return False


class Stem:
    """The conversation with a stem that is a child of this process."""

    def __init__(self, conversation: socket.socket) -> None:
        self._conversation = conversation
        self._asking = threading.Lock()

    def start(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        """The id of a new child of this process, which does what is requested with these descriptors."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        with self._asking:
            self._conversation.sendmsg([json.dumps(request).encode()], rights)
            return int(self._conversation.recv(100))


@functools.cache
def _stem() -> Stem:
    """The stem of this process, to its end."""
    if stem := start_stem(*PROGRAM, "testing.warm"):
        return stem
    raise RuntimeError("our modules could not be imported")


def start_stem(*command: str, has_session: bool = True) -> Stem | None:
    """A stem of this process, to its end, by a command that takes the number of a descriptor; None if it ended instead."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # A pipe for each stream: Python remembers of each whether it can seek.
    ends = [*os.pipe(), *os.pipe()]
    with theirs:
        process = _plain_popen(
            [*command, str(theirs.fileno())],
            env={**os.environ, "HGENCODING": "UTF-8"},
            pass_fds=[theirs.fileno()],
            stdin=ends[0],
            stdout=ends[3],
            stderr=ends[3],
            start_new_session=has_session,
        )
    for end in ends:
        os.close(end)
    process.returncode = 0  # nothing waits for it: it ends with this process
    return Stem(ours) if ours.recv(1) == b"r" else None


def serve(
    conversation: socket.socket, prepare: Callable[[Mapping[str, Any]], None] = lambda request: None
) -> dict[str, Any] | None:
    """Start a process for each request until the other end closes, prepared for it; in a new process, return its request."""
    from hgext.vcsreplicator.mirror.forking import fork_sibling

    libc = ctypes.PyDLL(None)
    libc.prctl(PR_SET_NAME, STEM.encode())
    while True:
        message, rights, _, _ = conversation.recvmsg(1 << 20, socket.CMSG_SPACE(4 * 253))
        if not message:
            return None
        descriptors = array.array("i")
        for _, _, data in rights:
            descriptors.frombytes(data)
        request: dict[str, Any] = json.loads(message)
        prepare(request)
        child = fork_sibling(libc)
        if not child:
            conversation.detach()
            take_descriptors(request["descriptors"], list(descriptors))
            libc.prctl(PR_SET_NAME, b"python")
            return request
        for number in descriptors:
            os.close(number)
        conversation.send(str(child).encode())


def take_descriptors(wanted: Sequence[int], given: Sequence[int]) -> None:
    """Have the given descriptors under the wanted numbers, and no others."""
    above = max([*wanted, *given]) + 1
    kept = [fcntl.fcntl(number, fcntl.F_DUPFD, above) for number in given]
    for number, copy in zip(wanted, kept, strict=True):
        os.dup2(copy, number)
    for number in set(map(int, os.listdir("/proc/self/fd"))) - set(wanted):
        with contextlib.suppress(OSError):  # that of the listing itself
            os.close(number)


def run(request: Mapping[str, Any]) -> NoReturn:
    """Be what is requested, and end as Python ends, without taking apart what this process imported."""
    code = 1
    try:
        become(request)
        code = 0
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        finish(code)


def finish(code: int) -> NoReturn:
    """End as Python does, but for what it imported."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def become(request: Mapping[str, Any]) -> None:
    """Take over what a new process has of its own, and run the module."""
    gc.enable()
    if request["has_session"]:
        os.setsid()
    os.umask(request["umask"])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    if request["leash"] is not None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != request["leash"]:
            sys.exit()
    sys.argv[:] = ["-m", *request["arguments"]]
    sys.orig_argv[:] = [*PROGRAM, request["module"], *request["arguments"]]
    if STEPS in request["environment"]:
        runpy.run_path(str(STEPPING))
    sys.modules.pop(request["module"] if request["module"] in (WORKER, NURSERY) else f"{CLI}.__main__", None)
    if request["arguments"][:1] in (["mirror"], ["web"], ["demo"]):
        start_workers_warm()
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def start_workers_warm() -> None:
    """Have a stem of this process' own, a fork of it, for what it starts."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not os.fork():
        ours.close()
        os.setsid()
        with open(os.devnull, "r+b", buffering=0) as nothing:
            for number in range(3):
                os.dup2(nothing.fileno(), number)
        serve_and_run(theirs)
        os._exit(0)
    theirs.close()
    stem = Stem(ours)
    globals()["_stem"] = lambda: stem
    subprocess.Popen = WarmPopen  # type: ignore[misc]


def import_ours() -> None:
    """Import what services and workers use, and so Mercurial."""
    gc.disable()  # a quarter of the time; each process enables it
    for name in USED:
        importlib.import_module(name)
    for name in OF_MERCURIAL:
        with contextlib.suppress(ImportError, AttributeError):
            importlib.import_module(name)
    source = Path(importlib.import_module(CLI).__file__ or "").parent
    for verb in ("daemons", "web", "status", "check", "trace"):
        importlib.import_module(f"{CLI}.{verb}") if (source / f"{verb}.py").exists() else None
    importlib.import_module(NURSERY)  # which imports the worker
    gc.freeze()


def import_more(request: Mapping[str, Any]) -> None:
    """Import what the requested command needs besides, unless that was done for one before."""
    names = [name for word in request["arguments"] for name in OF_SOME.get(word, ()) if name not in sys.modules]
    for name in names:
        importlib.import_module(name)
    if names:
        gc.freeze()


def serve_and_run(conversation: socket.socket) -> None:
    """Serve, and in each new process be what is requested."""
    if request := serve(conversation, import_more):
        run(request)


if __name__ == "__main__":
    import testing.warm  # of which this is a second copy

    conversation = socket.socket(fileno=int(sys.argv[1]))
    testing.warm.import_ours()
    conversation.send(b"r")
    testing.warm.serve_and_run(conversation)
