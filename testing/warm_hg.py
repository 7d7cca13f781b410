# SPDX-License-Identifier: GPL-2.0-or-later
"""`hg` without what each start repeats: each command is a fork of a Python that has imported Mercurial and our modules.

    with warm_hg(folder, environment) as hg:       # the path of a program named `hg`
        subprocess.run([hg, "init", "repo"], env=environment)
        subprocess.run([hg.with_name("python"), "script.py"], env=environment)

The fork happens before anything of Mercurial ran: no configuration was read, no extension is known. It gets the caller's
arguments, environment, folder, umask, standard streams, and reports its exit. A caller that is killed takes its command along.
A daemon that it starts is such a fork too, and outlives it. A caller whose environment differs where imports depend on it gets the
real `hg`. Not for tests of start-up, or that kill what they started: they would kill the client. `testing.faults.PythonSteps` kills
at lines of a command that is started so.
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import hashlib
import importlib
import os
import pkgutil
import runpy
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from testing.services.cache import cached
from testing.services.keeper import ADDRESS, ask
from testing.services.process import needed

HG = str(Path(sys.executable).with_name("hg"))
# Counts the lines of a command, and kills at one, if its environment says so.
STEPPING, STEPS = Path(__file__).parent / "faults" / "stepping" / "sitecustomize.py", "VCSREPLICATOR_TEST_STEPS"

# What Python and Mercurial look at while they are imported.
IMPORTED = (
    "HGENCODING",
    "HGENCODINGMODE",
    "HGENCODINGAMBIGUOUS",
    "HGMODULEPOLICY",
    "HGDEMANDIMPORT",
    "HGEMITWARNINGS",
    "LC_ALL",
    "LC_CTYPE",
    "LANG",
    "LANGUAGE",
    "PYTHONPATH",
    "PYTHONWARNINGS",
    "PYTHONHASHSEED",
    "PYTHONUNBUFFERED",
    "PYTHONUTF8",
)

# Its source is in C, as Python takes ten times as long to start as what it would do.
CLIENT = Path(__file__).with_name("warm_client.c")
# The value of a variable that is not set, for the client.
UNSET = "\1"
# The kind of what a keeper shares between the workers of a run: a warm `hg`.
KIND = "hg"

# The server's socket, in the programs' folder; the beginning of the name of a folder that is made for them.
SOCKET, PREFIX = "socket", "warm-hg-"
# An option of prctl(2).
PR_SET_CHILD_SUBREAPER = 36

# What most commands import in the end.
USED = (
    "mercurial.dispatch",
    "mercurial.commands",
    "mercurial.debugcommands",
    "mercurial.localrepo",
    "mercurial.hg",
    "mercurial.exchange",
    "mercurial.wireprotoserver",
    "mercurial.sshpeer",
    "mercurial.bundle2",
    "mercurial.streamclone",
    "mercurial.repair",
    "mercurial.templater",
    "mercurial.templatefilters",
    "mercurial.templatefuncs",
    "mercurial.templatekw",
    "sqlite3",
    "mercurial.merge",
    "mercurial.obsolete",
    "mercurial.obsutil",
    "mercurial.filelog",
    "mercurial.changegroup",
    "mercurial.hgweb.hgweb_mod",
    "hgext.strip",
    "pdb",
    "hgext.vcsreplicator.log.blobs",
    "hgext.vcsreplicator.log.opening",
    "hgext.vcsreplicator.log.ownership",
    "hgext.vcsreplicator.words.secrecy",
    "encodings.idna",
    "xml.sax.saxutils",
)

# What Mercurial's own runner of transcripts imports.
OF_THE_RUNNER = (
    "multiprocessing",
    "unittest",
    "xml.dom.minidom",
    "pygments.console",
    "pygments.formatters",
    "pygments.lexers.diff",
)

# Our packages of which a command loads modules, which change nothing until Mercurial loads the extension; and what daemons load.
OURS = (
    "pushlog",
    "pushlog.web",
    "hooks",
    "hgext.vcsreplicator.hg",
    "hgext.vcsreplicator.hg.master",
    "hgext.vcsreplicator.hg.master.acts",
    "hgext.vcsreplicator.hg.serving",
    "hgext.vcsreplicator.log.sqlite",
    "hgext.vcsreplicator.outbox",
)
OF_DAEMONS = ("hgext.vcsreplicator.hg.relaying", "hgext.vcsreplicator.hg.serving.web")

_starting = threading.Lock()


@contextlib.contextmanager
def warm_hg(folder: Path, environment: Mapping[str, str], umask: int | None = None) -> Iterator[Path]:
    """A program `hg` in `folder`, and `python` beside it, warm for callers with this environment and umask: by default ours.

    They end with the block, or with this process, and so do daemons that commands started. The programs' files end with them.
    """
    address = str(folder / SOCKET)
    umask = read_umask() if umask is None else umask
    link_clients(folder, address, environment, umask)
    ready, theirs = socket.socketpair()
    command = [sys.executable, "-P", "-m", "testing.warm_hg", address, str(theirs.fileno())]
    server = subprocess.Popen(
        command,
        env=dict(environment),
        pass_fds=[theirs.fileno()],
        stdin=subprocess.PIPE,  # pipes all: Python remembers of each stream whether it can seek
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        umask=umask,
    )
    with server, ready:
        theirs.close()
        ready.settimeout(90)
        if ready.recv(1) != b"r":
            assert server.stderr is not None
            raise RuntimeError(f"hg could not be warmed: {server.stderr.read().decode(errors='replace')}")
        yield folder / "hg"


def shared_hg(environment: Mapping[str, str] | None = None) -> str:
    """A warm `hg` for callers with this umask and environment.

    It ends with the run of tests if several workers share it, else with this process.
    """
    environment = os.environ if environment is None else environment
    with _starting:
        return _find(os.environ.get(ADDRESS), f"{read_umask():o}", *(environment.get(name, UNSET) for name in IMPORTED))


def shared_python(environment: Mapping[str, str] | None = None) -> str:
    """The `python` beside `shared_hg`, which runs scripts and code; any other program of its starts cold."""
    return str(Path(shared_hg(environment)).with_name("python"))


def link_clients(folder: Path, address: str, environment: Mapping[str, str], umask: int) -> None:
    """Put programs `hg` and `python` there that ask the server at this address, for callers with this environment and umask."""
    settings = [text for name in IMPORTED for text in (name, environment.get(name, UNSET))]
    for name, program in (("hg", HG), ("python", sys.executable)):
        _link_client(folder / name, [program, address, f"{umask:o}", *settings])


def _link_client(path: Path, settings: Sequence[str]) -> None:
    """Put the client there, with its settings beside it."""
    path.with_suffix(".settings").write_bytes(b"".join(os.fsencode(text) + b"\0" for text in settings))
    made_from = hashlib.sha256(CLIENT.read_bytes()).hexdigest()[:12]
    program = cached(f"warm-client-{made_from}", _compile_client) / "client"
    try:
        path.hardlink_to(program)
    except OSError:  # on another file system
        shutil.copy(program, path)


def _compile_client(folder: Path) -> None:
    subprocess.run([needed("cc", "gcc"), "-O1", "-static", "-o", str(folder / "client"), str(CLIENT)], check=True)


def read_umask() -> int:
    """The umask of this process, which other threads keep meanwhile."""
    return int(Path("/proc/self/status").read_text().partition("Umask:")[2].split()[0], 8)


@functools.cache
def _find(keeper: str | None, *settings: str) -> str:
    """The path of a warm `hg` for these settings: the keeper's of the run, or one of this process."""
    if keeper is not None:
        path: str = ask(KIND, "make", *settings)
        return path
    ending = contextlib.ExitStack()
    atexit.register(ending.close)
    return ending.enter_context(warm_hg_for(*settings))


@contextlib.contextmanager
def warm_hg_for(umask: str, *values: str) -> Iterator[str]:
    """The path of a warm `hg` for an umask, in octal, and the values of what is read while Mercurial is imported."""
    others = {name: value for name, value in os.environ.items() if name not in IMPORTED}
    imported = {name: value for name, value in zip(IMPORTED, values, strict=True) if value != UNSET}
    with (
        tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as folder,
        warm_hg(Path(folder), {**others, **imported}, int(umask, 8)) as hg,
    ):
        yield str(hg)


def serve(address: str, life: int) -> None:
    """Fork for each caller, until the other end of `life` closes; then end all that callers started, and remove the programs."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # daemons become children of this process
    server = os.getpid()
    try:
        _serve(address, life)
    finally:
        if os.getpid() == server:
            _end_children()
            _remove_programs(Path(address).parent)


def _serve(address: str, life: int) -> None:
    import_mercurial()
    listener, ended = socket.socket(socket.AF_UNIX), socket.socket(fileno=life)
    listener.bind(address)
    listener.listen(64)
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    callers: dict[int, socket.socket] = {}
    waiting = selectors.DefaultSelector()
    for each in (listener, woken, ended):
        waiting.register(each, selectors.EVENT_READ)
    ended.send(b"r")
    while True:
        for key, _ in waiting.select():
            if key.fileobj is listener:
                caller, _ = listener.accept()
                try:
                    request, streams = receive(caller)
                except (EOFError, ConnectionError):  # it was killed
                    caller.close()
                    continue
                child = os.fork()
                if not child:
                    run(request, streams)
                for stream in streams:
                    os.close(stream)
                callers[child] = caller
                waiting.register(caller, selectors.EVENT_READ, child)
            elif key.fileobj is woken:
                woken.recv(4096)
                for child, status in reap():
                    if child not in callers:  # a daemon
                        continue
                    waiting.unregister(callers[child])
                    with callers.pop(child) as caller, contextlib.suppress(OSError):
                        caller.sendall(struct.pack(">I", status))
            elif key.fileobj is ended:
                return
            elif key.data in callers:  # it sends no more, so it was killed
                os.kill(key.data, signal.SIGKILL)


def _end_children() -> None:
    """Kill all that commands started: what a killed one had started is then a child of this process."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while found := children.read_text().split():
        for child in map(int, found):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _remove_programs(folder: Path) -> None:
    """Remove what `warm_hg` put into the folder, and a folder that was made for it."""
    for name in ("hg", "python"):
        for path in (folder / name, (folder / name).with_suffix(".settings")):
            path.unlink(missing_ok=True)
    (folder / SOCKET).unlink(missing_ok=True)
    if folder.name.startswith(PREFIX):
        with contextlib.suppress(OSError):  # its owner removed it
            folder.rmdir()


def import_mercurial() -> None:
    """Import what a command needs, all that `hg` would import when it is used."""
    gc.disable()  # a quarter of the time; a command enables it
    for name in OF_THE_RUNNER:
        with contextlib.suppress(ImportError):  # in an environment of another version
            importlib.import_module(name)
    importlib.import_module("hgdemandimport").enable()
    for name in (*USED, *_list_ours()):
        with contextlib.suppress(ImportError):  # of another version
            vars(importlib.import_module(name))  # now, not when it is used
    known: set[str] = set()
    while new := set(sys.modules) - known:  # those that the last round imported
        known |= new
        for name in new:
            with contextlib.suppress(ImportError):  # of another system
                vars(importlib.import_module(name))
    gc.freeze()  # with what is garbage: a command would write into the gaps between what stays, and so copy each page of it


def _list_ours() -> Iterator[str]:
    """The names of all modules of our packages that are for `hg`."""
    for name in OURS:
        with contextlib.suppress(ImportError):  # it refuses to run on this version
            package = importlib.import_module(name)
            for module in pkgutil.iter_modules(package.__path__, f"{name}."):
                if module.name not in OF_DAEMONS:
                    yield module.name


def receive(caller: socket.socket) -> tuple[list[bytes], tuple[int, ...]]:
    """A caller's folder, number of arguments, arguments and variables; and its standard streams. EOFError if it is gone."""
    head, ancillary, _, _ = caller.recvmsg(8, socket.CMSG_SPACE(12))
    streams = [number for _, _, data in ancillary for number in struct.unpack("3i", data)]
    with caller.makefile("rb") as body, contextlib.suppress(ConnectionError):
        request = body.read(size := int.from_bytes(head, "big") if streams else 0)
        if streams and len(request) == size:
            return request.split(b"\0"), tuple(streams)
    for stream in streams:
        os.close(stream)
    raise EOFError


def reap() -> Iterator[tuple[int, int]]:
    """Children that ended, with how."""
    with contextlib.suppress(ChildProcessError):  # there are none
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended


def run(request: list[bytes], streams: tuple[int, ...]) -> None:
    """Be the caller's program; does not return."""
    gc.enable()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, 1024)  # their objects live in the caller of this function, which never goes on
    count = int(request[1])
    os.environ.clear()
    os.environb.update(word.split(b"=", 1) for word in request[2 + count :])  # type: ignore[misc]
    time.tzset()
    os.chdir(request[0])
    program, *arguments = request[2 : 2 + count]
    code = 1
    try:
        sys.orig_argv[:] = map(os.fsdecode, [program, *arguments])
        if STEPS in os.environ:
            runpy.run_path(str(STEPPING))
        if os.fsdecode(program) == HG:
            run_hg(arguments)
        run_python(list(map(os.fsdecode, arguments)))
        code = 0
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            if os.fsdecode(program) != HG:  # some of its objects speak when they end: a peer says what its server wrote
                vars(sys.modules["__main__"]).clear()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def run_hg(arguments: list[bytes]) -> None:
    """Be `hg`, which ends with a `SystemExit`."""
    from mercurial import dispatch, pycompat

    if {b"-d", b"--daemon"} & set(arguments) and not any(word.startswith(b"--daemon-postexec") for word in arguments):
        vars(importlib.import_module("mercurial.utils.procutil"))["spawndetached"] = _keep_daemon()
    sys.argv[:] = [HG, *map(os.fsdecode, arguments)]
    pycompat.sysargv[:] = [HG.encode(), *arguments]
    dispatch.run()


def _keep_daemon() -> Callable[[list[bytes | str]], int]:
    """What starts a daemon as `hg` does, without a new program: a fork of this process that waits, before anything ran in it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    daemon = os.fork()
    if not daemon:
        ours.close()
        request = theirs.recv(1 << 20)
        theirs.close()
        if not request:  # the command needed no daemon, or was killed
            os._exit(0)
        count, folder, *words = request.split(b"\0")
        run([folder, count, *words], ())
    theirs.close()

    def spawn(command: list[bytes | str]) -> int:
        words = [HG.encode(), *map(os.fsencode, command[1:])]
        variables = [name + b"=" + value for name, value in os.environb.items()]
        ours.sendall(b"\0".join([b"%d" % len(words), os.getcwdb(), *words, *variables]))
        ours.close()
        return daemon

    return spawn


def run_python(arguments: list[str]) -> None:
    """Be `python SCRIPT`, `python -c CODE` or `python -`, with all modules of Mercurial loaded and none of them initialized."""
    first, *more = arguments
    if first == "-c":
        source, name = more.pop(0).encode(), "<string>"
    elif first == "-":
        source, name = sys.stdin.buffer.read(), "<stdin>"
    else:
        source, name = Path(first).read_bytes(), first
    importlib.import_module("hgdemandimport").disable()
    sys.argv[:] = [first, *more]
    sys.path.insert(0, "" if name[0] == "<" else str(Path(first).resolve().parent))
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(main).update({"__file__": name} if name == first else {})
    exec(compile(source, name, "exec"), vars(main))


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
