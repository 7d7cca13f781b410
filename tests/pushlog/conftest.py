# SPDX-License-Identifier: GPL-2.0-or-later
"""The golden repositories, an hgweb in this process to ask them, and small repositories that push and pull in this process."""

import contextlib
import hashlib
import importlib.util
import inspect
import io
import itertools
import os
import shutil
import sqlite3
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from mercurial import exchange, extensions, merge, repair, scmutil
from mercurial import ui as ui_module

from pushlog import checking, registration, wire
from pushlog.store import database
from pushlog.store.storage import Pushlog
from pushlog.versions import factory, hgweb_mod_inner, initialize, is_older_than
from testing.services.cache import cached
from testing.warm_hg import shared_hg

initialize()

GOLDEN = Path(__file__).parent.parent / "golden"
MAKER = GOLDEN / "make_repository.py"
HG = str(Path(sys.executable).with_name("hg"))


def environment(root):
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("HG")},
        "TZ": "UTC",
        "HGENCODING": "UTF-8",
        "HGPLAIN": "1",
        "HGRCPATH": str(root / "hgrc"),
        "HG": HG,
    }


def set_branch(repository, name):
    """Let the next commits be made on a branch."""
    with repository.wlock():
        transaction = () if is_older_than((6, 4)) else (repository.currenttransaction(),)
        repository.dirstate.setbranch(name, *transaction)


def make_golden(folder):
    """Let the given script make the four golden repositories in the folder; a hundred starts of `hg`, so a warm one."""
    specification = importlib.util.spec_from_file_location("make_repository", MAKER)
    maker = importlib.util.module_from_spec(specification)
    sys.modules["make_repository"] = maker
    specification.loader.exec_module(maker)
    with environment_variable("HG", shared_hg({"HGENCODING": "UTF-8", "LC_ALL": "C.UTF-8"})):  # as the script has it
        nodes = list(maker.make_repository(folder / "golden-none", pushlog="none").values())
    for name, state in (("golden", "mixed"), ("golden-sound", "sound"), ("golden-broken", "broken")):
        shutil.copytree(folder / "golden-none", folder / name)
        maker.write_pushlog(folder / name, nodes, state)


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    """The four golden repositories side by side; they share one history.

    They come from the cache, by the programs that make them: those make the same history each time.
    """
    made_by = hashlib.sha256(MAKER.read_bytes() + inspect.getsource(make_golden).encode()).hexdigest()[:12]
    root = tmp_path_factory.mktemp("golden")
    shutil.copytree(cached(f"golden-{made_by}-{version('mercurial')}", make_golden), root, dirs_exist_ok=True)
    (root / "hgrc").write_text("[extensions]\n*:required = yes\npushlog =\n")
    (root / "web.conf").write_text(f"[paths]\n/ = {root}/*\n")
    return root


class Site:
    """An hgweb over one repository, called without a network."""

    def __init__(self, folder, settings="", *, create=False):
        hgrc = folder.parent / f"{folder.name}.hgrc"
        hgrc.write_text("[extensions]\n*:required = yes\npushlog =\nstrip =\n" + settings)
        with environment_variable("HGRCPATH", str(hgrc)):
            user_interface = ui_module.ui.load()
            extensions.loadall(user_interface)
            extensions.populateui(user_interface)
        repository = factory.repository(user_interface, os.fsencode(folder), create=create)
        self.repository = repository.unfiltered()
        self._application = hgweb_mod_inner.hgweb(repository)
        self.members = {}  # more of the environment of requests

    def get(self, path, query="", *, script="", **headers):
        """(status, headers, body); ``query`` is taken as it is, ``script`` is where the server has the repository."""
        started = []
        body = b"".join(self.answer(path, query, script=script, started=started, **headers))
        return int(started[0][0][:3]), started[0][1], body

    def answer(self, path, query="", *, script="", started=None, **headers):
        """The pieces of an answer; ``started`` gets its status and headers."""
        environment = {
            "wsgi.url_scheme": "http",
            "wsgi.input": None,
            "SERVER_NAME": "hg.example.com",
            "SERVER_PORT": "80",
            "SCRIPT_NAME": script,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": "GET",
            **{f"HTTP_{name.upper()}": value for name, value in headers.items()},
            **self.members,
        }
        started, written = [] if started is None else started, []

        def start(status, headers):
            started.append((status, dict(headers)))
            return written.append

        return itertools.chain(self._application(environment, start), written)


@contextlib.contextmanager
def environment_variable(name, value):
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@pytest.fixture(scope="session")
def site(root):
    """The golden repository, read only."""
    return Site(root / "golden")


class Place:
    """A repository of a test's folder, opened as a process of its own would."""

    def __init__(self, folder, name):
        self.folder = folder / name
        if not self.folder.exists():
            self._open(create=True)

    def _open(self, *, create=False):
        user_interface = ui_module.ui.load()
        extensions.loadall(user_interface)
        extensions.populateui(user_interface)
        user_interface.fout = user_interface.ferr = self.printed = io.BytesIO()
        return factory.repository(user_interface, os.fsencode(self.folder), create=create)

    @property
    def repository(self):
        return self._open()

    def commit(self, name, *, onto=None):
        """The hash of a new changeset, as text."""
        repository = self.repository
        with repository.wlock(), repository.lock():
            if onto is not None:
                merge.clean_update(repository[onto])
            repository.wvfs.write(b"file", name)
            if b"file" not in repository.dirstate:
                with getattr(repository.dirstate, "changing_files", contextlib.nullcontext)(repository):
                    repository[None].add([b"file"])
            return repository.commit(name).hex()

    def push_to(self, other, *nodes):
        local = self.repository
        remote = factory.peer(local.ui, {}, os.fsencode(other.folder))
        exchange.push(local, remote, force=True, revs=[bytes.fromhex(node) for node in nodes] or None)

    def pull_from(self, other, *nodes, answer=None, capabilities=None):
        """What a pull printed; ``answer`` replaces what the server says of its pushlog.

        ``capabilities`` are more of the server's, with their values.
        """
        local = self.repository
        remote = factory.peer(local.ui, {}, os.fsencode(other.folder))
        # So does a server of each version; its peer in this process, from 7.2 on.
        remote._repo = remote._repo.filtered(remote._repo.ui.config(b"server", b"view"))
        streams = []

        def call(command, firstpush):
            assert command == b"pushlog-stream"
            body = b"".join(wire.stream_rows(remote._repo, firstpush)) if answer is None else answer
            streams.append(io.BytesIO(body))
            return streams[-1]

        announced = registration.announce(lambda *_: [], remote._repo, None)
        more = {**dict.fromkeys(announced, True), **(capabilities or {})}
        remote.capable = lambda name: more.get(name) or type(remote).capable(remote, name)
        remote._callstream = call
        exchange.pull(local, remote, heads=[bytes.fromhex(node) for node in nodes] or None)
        assert {stream.read() for stream in streams} == {b""}, "not read up to the trailer"
        return self.printed.getvalue().decode("utf-8", "replace")

    def strip(self, node):
        repository = self.repository
        with repository.wlock(), repository.lock():
            repair.strip(repository.ui, repository, [bytes.fromhex(node)], backup=False)

    def sql(self, statement, *arguments):
        connection = sqlite3.connect(self.folder / ".hg" / "pushlog2.db", isolation_level=None)
        connection.execute(statement, arguments)
        connection.close()

    def rows(self):
        with Pushlog(self.repository).view() as connection:
            pushes = list(database.pushes(connection, 0, database.last_id(connection)))
        return {push.id: (push.user, list(push.nodes)) for push in pushes}

    def errors(self):
        return [line for line, is_error in checking.problems(Pushlog(self.repository)) if is_error]


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "hgrc").write_text(
        "[extensions]\n*:required = yes\npushlog =\nstrip =\n[pushlog]\nretrydelayms = 0\n[ui]\nusername = test\n"
        "[devel]\ndefault-date = 1500000000 0\n[phases]\npublish = no\n"
    )
    monkeypatch.setenv("HGRCPATH", str(tmp_path / "hgrc"))
    monkeypatch.setenv("USER", "alice")
    monkeypatch.setitem(os.environb, b"USER", b"alice")
    return lambda name: Place(tmp_path, name)


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A folder with what `make_once` made, and what its makers returned."""
    return tmp_path_factory.mktemp("made"), {}


@pytest.fixture
def make_once(made, tmp_path):
    """Have a function make repositories of these names in the test's folder; the tests after the first get copies of them."""
    kept, returned = made

    def make_once(maker, *names):
        there = kept / maker.__name__
        is_made = maker.__name__ in returned
        if not is_made:
            returned[maker.__name__] = maker()
        for name in names:
            ends = (there / name, tmp_path / name)
            shutil.copytree(*ends if is_made else reversed(ends))
        return returned[maker.__name__]

    return make_once


@pytest.fixture
def server(place, make_once):
    """Three pushes, of a changeset each, on a line."""

    def push_three():
        source = place("source")
        for name in (b"a", b"b", b"c"):
            source.commit(name)
            source.push_to(place("server"))

    make_once(push_three, "source", "server")
    return place("server")


@pytest.fixture
def shown(monkeypatch):
    """The steps of all of Mercurial's bars, as topic, position and total."""
    shown, update = [], scmutil.progress.update

    def note(progress, position, item=b"", total=None):
        update(progress, position, item, total)
        shown.append((progress.topic, position, progress.total))

    monkeypatch.setattr(scmutil.progress, "update", note)
    return shown
