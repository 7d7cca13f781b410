# SPDX-License-Identifier: GPL-2.0-or-later
"""The answers of the reference on the golden repository, and the better ones where its README asks for them."""

import json
import os
import re
import subprocess
import urllib.error
import urllib.request
import xml.etree.ElementTree as ElementTree

import pytest

from testing.services.cache import CHECKOUT
from testing.warm_hg import shared_hg
from tests.pushlog.conftest import environment

pytestmark = pytest.mark.processes

GOLDEN = CHECKOUT / "tests" / "golden"
RESPONSES = GOLDEN / "responses"
CASES = json.loads((RESPONSES / "index.json").read_text())
JSON = "application/json"

# answers of the reference that its README calls quirks: (status, what is wanted instead)
BETTER = {
    "error-startid-word": (400, {"error": "startID parameter must be an integer, got 'abc'"}),
    "error-startid-empty": (400, {"error": "startID parameter must be an integer, got ''"}),
    "error-endid-word": (400, {"error": "endID parameter must be an integer, got 'abc'"}),
    "v2-tochange-never-pushed": (
        404,
        {"error": "changeset 'ee7b47ed7efc8b347d176e8f9c57b81979502ec5' was never pushed"},
    ),
    "v2-startdate-garbage": (
        400,
        {
            "error": "startdate: cannot read the date 'garbage': "
            "expected YYYY-MM-DD HH:MM:SS, epoch seconds or words like 1 hour ago"
        },
    ),
    "v2-user-utf-8": (200, {"lastpushid": 16, "pushes": {}}),
}
# (push, changesets of it) for answers that keep the reference's form but hold other pushes
BETTER_PUSHES = {
    "v2-startdate-epoch": ["16"],
    "v2-branch-newest": ["15", "4"],
    "v2-tipsonly-empty-push": ["1", "10", "11", "12", "13", "14", "15", "16", "2", "3", "4", "6", "9"],
}
BETTER_OUTPUT = {
    "revset-pushhead": "0 2 5 6 8 9 10 15 16 17 18 ",
    "revset-pushhead-sound": "1 2 5 6 8 9 10 15 16 17 18 ",
    "revset-pushid-half-hidden": "12 ",
    "revset-pushid-empty-push": "",
    "revset-pushuser-visible": "10 14 15 ",
    "revset-pushdate-visible": "10 ",
    "revset-pushrev-half-hidden": "12 ",
}
BETTER_ENTRIES = {"json-log-revset-half-hidden": ["f2d8b55bc5aac52105cbfcedc23563aadb6cf4b6"]}


@pytest.fixture(scope="session")
def server(root):
    """The URL of an hgweb over the golden repositories."""
    command = [
        shared_hg(environment(root)),
        "serve",
        "--web-conf",
        str(root / "web.conf"),
        "-a",
        "127.0.0.1",
        "-p",
        "0",
        "--print-url",
        "--accesslog",
        os.devnull,  # not the pipe, of which only the first line is read
    ]
    with (root / "errors.log").open("wb") as errors:
        process = subprocess.Popen(command, env=environment(root), stdout=subprocess.PIPE, stderr=errors)
        try:
            yield "http://127.0.0.1:" + process.stdout.readline().decode().rstrip("/\n").rpartition(":")[2]
        finally:
            process.terminate()
            process.wait()
            process.stdout.close()
    assert "Traceback" not in (root / "errors.log").read_text()


def get(url):
    request = urllib.request.Request(url, headers={"Accept": "*/*"})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read()
    except urllib.error.HTTPError as answer:
        with answer:
            return answer.code, answer.headers["Content-Type"], answer.read()


def expected(case):
    return (RESPONSES / case["file"]).read_bytes()


def is_of(case, *kinds):
    path = case["request"]
    return any(kind in path for kind in kinds)


WEB = [case for case in CASES if case["request"].startswith("GET ")]
PUSHES = [case for case in WEB if is_of(case, "/json-pushes", "cmd=pushes")]
FEEDS = [case for case in WEB if is_of(case, "/pushlog", "/atom-pushlog")]
ENTRIES = [case for case in WEB if is_of(case, "/json-rev", "/json-log")]
WIRE = [case for case in WEB if is_of(case, "cmd=pushlog", "cmd=capabilities")]
COMMANDS = [case for case in CASES if case["request"].startswith("hg ")]


def named(cases):
    return {"argvalues": cases, "ids": [case["name"] for case in cases]}


def test_every_golden_answer_is_compared():
    assert len(PUSHES) + len(FEEDS) + len(ENTRIES) + len(WIRE) + len(COMMANDS) == len(CASES) == 166


@pytest.mark.parametrize("case", **named(PUSHES))
def test_json_pushes_answers_as_the_reference(case, server):
    status, content_type, body = get(server + case["request"].removeprefix("GET "))
    if case["name"] in BETTER:
        assert (status, content_type, json.loads(body)) == (BETTER[case["name"]][0], JSON, BETTER[case["name"]][1])
        return
    if case["name"] in BETTER_PUSHES:
        assert (status, content_type) == (200, JSON)
        assert list(json.loads(body)["pushes"]) == BETTER_PUSHES[case["name"]]
        return
    assert (status, content_type) == (case["status"], case["content_type"])
    assert body == expected(case)


def canonical(document):
    """XML as nested values, white space between elements aside."""

    def values(element):
        return element.tag, sorted(element.items()), (element.text or "").strip(), [values(child) for child in element]

    return values(ElementTree.fromstring(document))


@pytest.mark.parametrize("case", **named(FEEDS))
def test_the_feed_answers_as_the_reference(case, server):
    status, content_type, body = get(server + case["request"].removeprefix("GET "))
    assert (status, content_type) == (case["status"], case["content_type"])
    if case["status"] != 200:
        assert expected(case).strip() in body
        return
    body = re.sub(rb"http://localhost:\d+", b"http://hg.example.com", body)
    once = re.sub(rb"&amp;(#39|quot|lt|gt|amp);", rb"&\1;", expected(case))  # the quirk: users are escaped twice
    files = rb"<li.*?</li>"
    wanted = re.sub(files, b"", once) + b"".join(re.findall(files, expected(case)))
    assert canonical(re.sub(files, b"", body)) == canonical(wanted.partition(b"</feed>")[0] + b"</feed>")
    assert re.findall(files, body.replace(b"&quot;", b'"')) == re.findall(
        files, expected(case).replace(b"&quot;", b'"')
    )


@pytest.mark.parametrize("case", **named(ENTRIES))
def test_changesets_as_json_name_their_push(case, server):
    status, content_type, body = get(server + case["request"].removeprefix("GET "))
    assert (status, content_type) == (case["status"], case["content_type"])
    answer = json.loads(body)
    if case["name"] in BETTER_ENTRIES:
        assert [entry["node"] for entry in answer["entries"]] == BETTER_ENTRIES[case["name"]]
        return

    wanted = json.loads(expected(case))
    if "json-rev" in case["request"]:
        assert {name: answer[name] for name in wanted} == wanted
        return
    member = "changesets" if "changesets" in wanted else "entries"
    entries, answered = wanted[member], answer[member]
    assert [{name: entry[name] for name in entries[0]} for entry in answered] == entries


@pytest.mark.parametrize("case", **named(WIRE))
def test_the_wire_commands_answer_as_the_reference(case, server):
    status, content_type, body = get(server + case["request"].removeprefix("GET "))
    if "capabilities" in case["request"]:
        assert set(expected(case).split()) <= set(body.split())
        return
    assert (status, content_type, body) == (case["status"], case["content_type"], expected(case))


@pytest.mark.parametrize("case", **named(COMMANDS))
def test_commands_answer_as_the_reference(case, root):
    command = shared_hg(environment(root)) + case["request"].removeprefix("hg")
    result = subprocess.run(
        command,
        shell=True,
        cwd=root,
        env=environment(root),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if case["name"] in BETTER_OUTPUT:
        assert (result.returncode, result.stdout.decode()) == (0, BETTER_OUTPUT[case["name"]])
        return
    assert (result.returncode, result.stdout) == (case["status"], expected(case))


def test_reading_does_not_create_the_database(server, root):
    for path in ("json-pushes", "pushlog", "pushloghtml", "json-rev/0", "?cmd=pushlog&firstpush=0"):
        assert get(f"{server}/golden-none/{path}")[0] == 200
    assert not list((root / "golden-none" / ".hg").rglob("pushlog*"))
