# SPDX-License-Identifier: GPL-2.0-or-later
"""`json-pushes?wait=ID`: answered once that push is served, or as things are: never an error, and never for ever."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from mercurial import ui as ui_module

from pushlog.web import waiting
from pushlog.web.lookup import Lookup
from tests.pushlog.conftest import Site

# Mercurial leaves the files of its templates to the garbage collector
pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def looked(monkeypatch):
    """Is set when a request that waits has looked for its push."""
    event, look = threading.Event(), Lookup.last_served

    def last_served(self):
        found = look(self)
        event.set()
        return found

    monkeypatch.setattr(Lookup, "last_served", last_served)
    return event


def last_push(answer):
    status, _headers, body = answer
    assert status == 200
    return json.loads(body)["lastpushid"]


def test_a_request_is_answered_when_its_push_is_there(place, server, looked):
    site, source = Site(server.folder, "[pushlog]\nmaxwait = 600\n"), place("source")
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(site.get, "/json-pushes", "version=2&startID=3&wait=4")
        assert looked.wait(60)
        assert not answer.done()
        node = source.commit(b"d")
        source.push_to(server)
        status, _headers, body = answer.result(120)
    assert status == 200
    assert json.loads(body)["pushes"]["4"]["changesets"] == [node]


def test_a_push_that_is_there_is_not_waited_for(server, looked):
    site = Site(server.folder, "[pushlog]\nmaxwait = 600\n")
    assert last_push(site.get("/json-pushes", "version=2&wait=3")) == 3
    assert not looked.is_set()


def test_when_the_time_is_over_the_answer_is_as_things_are(server, looked):
    site = Site(server.folder, "[pushlog]\nmaxwait = 0\n")
    assert last_push(site.get("/json-pushes", "version=2&wait=9")) == 3
    assert looked.is_set()


def test_when_enough_requests_wait_the_next_is_answered_as_things_are(server, looked, monkeypatch):
    site = Site(server.folder, "[pushlog]\nmaxwait = 600\n")
    monkeypatch.setattr(waiting, "_waiting", {object() for _ in range(waiting.MOST)})
    assert last_push(site.get("/json-pushes", "version=2&wait=9")) == 3
    assert not looked.is_set()


@pytest.mark.parametrize(("allowed", "waits"), [(0, False), (1, True), (100, True)])
def test_a_server_may_allow_fewer_requests_to_wait(server, looked, allowed, waits):
    site = Site(server.folder, "[pushlog]\nmaxwait = 0\n")
    site.members["pushlog.waiters"] = allowed
    assert last_push(site.get("/json-pushes", "version=2&wait=9")) == 3
    assert looked.is_set() == waits


def test_a_place_is_free_again_after_waiting(server, looked):
    site = Site(server.folder, "[pushlog]\nmaxwait = 0\n")
    for _ in range(waiting.MOST + 1):
        looked.clear()
        site.get("/json-pushes", "version=2&wait=9")
        assert looked.is_set()


def test_what_is_waited_for_is_a_number(server):
    status, _headers, body = Site(server.folder).get("/json-pushes", "wait=soon")
    assert (status, json.loads(body)) == (400, {"error": "wait parameter must be an integer, got 'soon'"})


def test_the_link_to_the_rest_of_an_answer_does_not_wait_again(server):
    site = Site(server.folder, "[pushlog]\nmaxwait = 0\nmaxpushes = 1\n")
    _status, headers, _body = site.get("/json-pushes", "startID=0&wait=9")
    assert headers["Link"] == '</json-pushes?startID=1>; rel="next"'


def test_the_owner_of_a_repository_cannot_lengthen_the_waiting(server, looked, monkeypatch):
    hgrc = server.folder / ".hg" / "hgrc"
    hgrc.write_text("[pushlog]\nmaxwait = 600\n")
    monkeypatch.setattr(ui_module.ui, "_trusted", lambda self, file, name: name != os.fsencode(hgrc))
    site = Site(server.folder, "[pushlog]\nmaxwait = 0\n")
    with ThreadPoolExecutor() as pool:
        assert last_push(pool.submit(site.get, "/json-pushes", "version=2&wait=9").result(60)) == 3
    assert looked.is_set()
