# SPDX-License-Identifier: GPL-2.0-or-later
"""The golden repositories, and an hgweb in this process to ask them."""

import contextlib
import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest
from mercurial import extensions, initialization
from mercurial import ui as ui_module
from mercurial.hgweb import hgweb_mod_inner
from mercurial.repo import factory

initialization.init()

GOLDEN = Path(__file__).parent.parent / "golden"
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


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    """The four golden repositories side by side; they share one history."""
    root = tmp_path_factory.mktemp("golden")
    (root / "hgrc").write_text("[extensions]\npushlog =\n")
    (root / "web.conf").write_text(f"[paths]\n/ = {root}/*\n")
    specification = importlib.util.spec_from_file_location("make_repository", GOLDEN / "make_repository.py")
    maker = importlib.util.module_from_spec(specification)
    sys.modules["make_repository"] = maker
    specification.loader.exec_module(maker)
    os.environ["HG"] = HG
    nodes = list(maker.make_repository(root / "golden-none", pushlog="none").values())
    for name, state in (("golden", "mixed"), ("golden-sound", "sound"), ("golden-broken", "broken")):
        shutil.copytree(root / "golden-none", root / name)
        maker.write_pushlog(root / name, nodes, state)
    return root


class Site:
    """An hgweb over one repository, called without a network."""

    def __init__(self, folder, settings="", *, create=False):
        hgrc = folder.parent / f"{folder.name}.hgrc"
        hgrc.write_text("[extensions]\npushlog =\nstrip =\n" + settings)
        with environment_variable("HGRCPATH", str(hgrc)):
            user_interface = ui_module.ui.load()
            extensions.loadall(user_interface)
            extensions.populateui(user_interface)
        repository = factory.repository(user_interface, os.fsencode(folder), create=create)
        self.repository = repository.unfiltered()
        self._application = hgweb_mod_inner.hgweb(repository)

    def get(self, path, query="", **headers):
        """(status, headers, body); ``query`` is taken as it is."""
        environment = {
            "wsgi.url_scheme": "http",
            "wsgi.input": None,
            "SERVER_NAME": "hg.example.com",
            "SERVER_PORT": "80",
            "SCRIPT_NAME": "",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": "GET",
            **{f"HTTP_{name.upper()}": value for name, value in headers.items()},
        }
        started = []
        answer = self._application(environment, lambda status, headers: started.append((status, dict(headers))))
        body = b"".join(answer)
        return int(started[0][0][:3]), started[0][1], body


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
