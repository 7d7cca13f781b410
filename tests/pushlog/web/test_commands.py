# SPDX-License-Identifier: GPL-2.0-or-later
"""The pushlog's web answers: any parameters, hostile data, limits, long answers, edits by others."""

import html
import html.parser
import json
import os
import re
import shutil
import sqlite3
import time
import tracemalloc
import xml.etree.ElementTree as ElementTree
from importlib import resources
from urllib.parse import quote, urljoin, urlsplit

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mercurial import context, encoding, scmutil
from mercurial.utils import cborutil
from referencing import Registry, Resource

from pushlog import versions
from pushlog.store import database, entry
from pushlog.store.session import session_of
from pushlog.store.storage import Pushlog
from pushlog.web import commands, dates, lookup
from testing.bench import million_pushes
from tests.pushlog.conftest import Site, environment_variable, set_branch

# Mercurial leaves the files of its templates to the garbage collector
pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SCHEMAS = [
    json.loads((resources.files("pushlog") / "schemas" / f"json-pushes-{number}.json").read_text()) for number in (1, 2)
]
REGISTRY = Registry().with_resource("json-pushes-1.json", Resource.from_contents(SCHEMAS[0]))


def check(body, version):
    jsonschema.Draft202012Validator(SCHEMAS[version - 1], registry=REGISTRY).validate(json.loads(body))


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "query", ["", "full=1", "startID=0", "startID=0&full=1", "startID=0&tipsonly=1", "user=absent"]
)
@pytest.mark.parametrize("version", [1, 2])
def test_answers_keep_their_schema(site, query, version):
    status, _headers, body = site.get("/json-pushes", f"{query}&version={version}")
    assert status == 200
    check(body, version)


@pytest.mark.parametrize("version", [1, 2])
def test_the_schemas_are_schemas(version):
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[version - 1])


values = st.one_of(
    st.sampled_from(
        ["", "0", "1", "2", "9", "16", "-1", "tip", "wip", "stable", "default", "RELEASE_1_0", "c", "null", "2016-03-01",
         "1 day ago", "alice@example.com", "bob@example.com", "9" * 30, "00000000", "f" * 40, "reverse(all())", "..", "%"]
    ),
    st.text(max_size=20),
    st.binary(max_size=8),
)  # fmt: skip
parameters = st.lists(
    st.tuples(
        st.sampled_from(
            ["startID", "endID", "fromchange", "tochange", "startdate", "enddate", "user", "changeset", "branch",
             "tipsonly", "full", "version", "node", "nosuch"]
        ),
        values,
    ),
    max_size=5,
)  # fmt: skip


def encoded(pairs):
    return "&".join(
        f"{name}={quote(value if isinstance(value, bytes) else value.encode(errors='replace'))}"
        for name, value in pairs
    )


@pytest.fixture(scope="module")
def everything(site):
    """All pushes that can be seen, by id, and the branch of every changeset."""
    pushes = json.loads(site.get("/json-pushes", "startID=0&full=1")[2])
    changesets = {
        number: {each["node"]: each["branch"] for each in push["changesets"] + push.get("obsoletechangesets", [])}
        for number, push in pushes.items()
    }
    return pushes, changesets


pages = st.sampled_from(["json-pushes", "json-pushes/2", "json-pushes/x", "pushlog", "pushloghtml"])


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pairs=parameters, page=pages)
def test_no_parameters_are_an_accident(site, everything, pairs, page):
    check_parameters(site, everything, pairs, page)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pairs=parameters, page=pages)
def test_no_parameters_of_many_are_an_accident(site, everything, pairs, page):
    check_parameters(site, everything, pairs, page)


def check_parameters(site, everything, pairs, page):
    """Ask a page with these parameters: the answer is one of those that are meant, and has what was asked for."""
    status, headers, body = site.get("/" + page, encoded(pairs))
    wrong_version = [value for name, value in pairs if name == "version"][-1:]
    assert status in (200, 400, 404) or (status == 500 and wrong_version and b"version parameter" in body)
    assert all(value.isprintable() for value in headers.values())
    if page.startswith("json-pushes") and status == 200:
        answer = json.loads(body)
        check(body, 2 if "lastpushid" in answer else 1)
        assert_asked_for(site, everything, pairs, answer.get("pushes", answer))


def assert_asked_for(site, everything, pairs, answer):
    """Never more than asked, and never less but for pages."""
    pushes, changesets = everything
    given_values = {}
    for name, value in pairs:
        text = value if isinstance(value, bytes) else value.encode(errors="replace")
        given_values.setdefault(name, []).append(text.decode("utf-8", "replace"))
    last = {name: values[-1] for name, values in given_values.items()}
    is_paged = not {"startID", "fromchange", "startdate", "user", "changeset"} & last.keys()
    chosen = {number: push for number, push in pushes.items() if not is_paged or len(answer) <= 10}

    def push_of(name):
        node = scmutil.revsymbol(site.repository, name.encode()).hex().decode()
        return next((int(number) for number, names in changesets.items() if node in names), 0)

    def keep(condition):
        for number in [number for number, push in chosen.items() if not condition(int(number), push)]:
            del chosen[number]

    if "startdate" in last:
        keep(lambda _number, push: push["date"] > dates.parse(last["startdate"], int(time.time())))
    elif "fromchange" in last:
        first = push_of(last["fromchange"])
        keep(lambda number, _push: number > first)
    elif "startID" in last:
        keep(lambda number, _push: number > int(last["startID"]))
    if "enddate" in last and not is_paged:
        keep(lambda _number, push: push["date"] < dates.parse(last["enddate"], int(time.time())))
    elif "tochange" in last and not is_paged:
        end = push_of(last["tochange"])
        keep(lambda number, _push: number <= end)
    elif "endID" in last and not is_paged:
        keep(lambda number, _push: number <= int(last["endID"]))
    if "user" in last:
        keep(lambda _number, push: push["user"] in given_values["user"])
    if "changeset" in last:
        named = set(map(push_of, given_values["changeset"]))
        keep(lambda number, _push: number in named)
    if last.get("branch"):
        keep(lambda number, _push: last["branch"] in changesets[str(number)].values())
    assert answer.keys() <= chosen.keys() if is_paged else answer.keys() == chosen.keys()
    for number, push in answer.items():
        shown = push["changesets"] + push.get("obsoletechangesets", [])
        names = [each if isinstance(each, str) else each["node"] for each in shown]
        assert not last.get("branch") or {changesets[number][name] for name in names} == {last["branch"]}
        assert ("full" in last) == (not isinstance(shown[0], str))
        assert len(names) == 1 if last.get("tipsonly") == "1" else len(set(names)) == len(names)


@pytest.fixture
def copy(root, tmp_path):
    """A copy of the golden repository that a test may change."""
    shutil.copytree(root / "golden", tmp_path / "copy")
    return tmp_path / "copy"


def sql(folder, statement, *arguments):
    connection = sqlite3.connect(folder / ".hg" / "pushlog2.db", isolation_level=None)
    connection.execute(statement, arguments)
    connection.close()


def ids(body):
    return sorted(map(int, json.loads(body)))


def test_an_edit_by_another_process_shows_at_once(copy):
    site = Site(copy)
    _status, headers, before = site.get("/json-pushes", "startID=15")
    assert json.loads(before)["16"]["user"] == "bob@example.com"
    sql(copy, "UPDATE pushlog SET user = 'eve@example.com' WHERE id = 16")
    status, _headers, after = site.get("/json-pushes", "startID=15", if_none_match=headers["ETag"])
    assert (status, json.loads(after)["16"]["user"]) == (200, "eve@example.com")
    status, _headers, page = site.get("/json-rev/tip", "", if_none_match=headers["ETag"])
    assert (status, json.loads(page)["pushuser"]) == (200, "eve@example.com")


def test_a_push_that_comes_while_an_answer_is_made_is_in_the_next(place, server, monkeypatch):
    place("source").commit(b"d")
    find = lookup.Lookup.find

    def find_late(self):
        place("source").push_to(server)
        return find(self)

    site = Site(server.folder)
    with monkeypatch.context() as patch:
        patch.setattr(lookup.Lookup, "find", find_late)
        first = json.loads(site.get("/json-pushes", "version=2&startID=2")[2])
    second = json.loads(site.get("/json-pushes", f"version=2&startID={first['lastpushid']}")[2])
    assert [*first["pushes"], *second["pushes"]] == ["3", "4"]


def test_an_unchanged_answer_costs_a_304(site):
    _status, headers, _body = site.get("/json-pushes")
    assert site.get("/json-pushes", if_none_match=headers["ETag"])[0] == 304


def test_the_form_finds_the_push_of_a_changeset_whenever_it_was(site):
    """The golden pushes are years old."""
    node = next(iter(json.loads(site.get("/json-pushes", "startID=2&endID=3")[2]).values()))["changesets"][0]
    _status, _headers, form = site.get("/pushloghtml")
    fields = re.findall(rb'name="(\w+)"[^>]* value="([^"]*)"', form)
    assert [name for name, value in fields if value] == []
    for range_ in ("startdate=&enddate=", "startdate=1 week ago&enddate=now"):
        _status, _headers, body = site.get("/pushloghtml", f"{range_}&user=&changeset={node}&branch=".replace(" ", "+"))
        assert b"No pushes" not in body
        assert node[:12].encode() in body


@pytest.mark.parametrize("style", ["json", "raw", "rss", "atom"])
def test_a_style_without_pages_is_refused_in_words(site, style):
    status, _headers, body = site.get(f"/{style}-pushloghtml")
    assert status == 400
    assert b"json-pushes and atom-pushlog have its data" in body


def test_what_was_asked_during_a_push_is_not_taken_for_unchanged_after_it(server):
    """SQLite could not be committed because of a reader."""
    site, log = Site(server.folder), Pushlog(server.repository)
    push = entry.Push(id=4, user="late", date=1500000000, nodes=(log.repo.changelog.tip().hex(),))
    with log.repo.lock(), log.repo.transaction(b"test") as tr:
        log.file.append(tr, [entry.encode(push)])
        _status, headers, body = site.get("/json-pushes", "startID=3")
        assert ids(body) == []
    status, _headers, body = site.get("/json-pushes", "startID=3", if_none_match=headers["ETag"])
    assert (status, ids(body)) == (200, [4])


def test_an_answer_that_depends_on_the_time_has_no_tag(site):
    assert "ETag" not in site.get("/json-pushes", "startdate=1+hour+ago")[1]


@pytest.mark.parametrize("path", ["/json-pushes", "/pushlog", "/pushloghtml"])
def test_a_long_answer_is_cut_and_says_where_it_goes_on(copy, path):
    site = Site(copy, "[pushlog]\nmaxpushes = 3\n")
    query, seen = "startdate=0&version=1&user=alice%40example.com&user=bob%40example.com", []
    for _part in range(4):
        status, headers, body = site.get(path, query)
        assert status == 200
        if path == "/json-pushes":
            assert len(json.loads(body)) <= 3
            seen += ids(body)
        if "Link" not in headers:
            break
        target, relation = headers["Link"].split("; ")
        assert relation == 'rel="next"'
        assert urlsplit(target[1:-1]).path == path
        query = urlsplit(target[1:-1]).query
    assert "Link" not in headers
    if path == "/json-pushes":
        assert seen == [1, 2, 4, 6, 9, 12, 14, 16]


def test_a_long_answer_from_a_date_on_stays_in_its_window(server):
    server.sql("UPDATE pushlog SET date = 10 - id")
    site = Site(server.folder, "[pushlog]\nmaxpushes = 1\n")
    query, seen = "startdate=7", []
    while query:
        _status, headers, body = site.get("/json-pushes", query)
        seen += ids(body)
        query = urlsplit(headers["Link"].split(">")[0][1:]).query if "Link" in headers else ""
    assert seen == [1, 2]


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/json\r\nX-Evil: yes\r\n-pushes", "startID=0"),
        ("/json-pushes", "startID=0&user=alice%40example.com%0D%0AX-Evil%3A+yes&user=alice%40example.com"),
        ("/json-pushes", "startID=0&x%0D%0AX-Evil%3A+yes=1"),
        ("/json-pushes", "startID=0&x%3E%3B=%3E%3B"),
    ],
)
def test_a_question_cannot_add_a_header(copy, path, query):
    status, headers, _body = Site(copy, "[pushlog]\nmaxpushes = 1\n").get(path, query)
    assert status == 200
    assert not {character for character in headers["Link"] if character in "\r\n"}
    assert headers["Link"].count(">") == headers["Link"].count(";") == 1


@pytest.mark.parametrize("path", ["/json-pushes", "/x\r\nSet-Cookie: a", '/"><b>', "/\xc3\xb6"])
@pytest.mark.parametrize(("command", "name"), [("pushes&style=json", "json-pushes"), ("pushloghtml", "pushloghtml")])
def test_the_link_to_the_rest_holds_nothing_but_a_url(copy, path, command, name):
    site = Site(copy, "[pushlog]\nmaxpushes = 3\n")
    query = f"cmd={command}&startID=0&user=alice%40example.com&%0d%0aX=%22%3e%0a"
    for script in ("", '/"><\r\nX: y'):
        status, headers, _body = site.get(path, query, script=script)
        expected = f"{quote(script)}/{name}?user=alice%40example.com&%0D%0AX=%22%3E%0A&startID=6"
        assert (status, headers["Link"]) == (200, f'<{expected}>; rel="next"')


@pytest.mark.parametrize("script", ["", "/project/r", "//other.example.com"])
def test_the_link_to_the_rest_leads_to_the_host_that_was_asked(copy, script):
    """Behind a proxy the name and port of this server are not those that clients know."""
    site = Site(copy, "[pushlog]\nmaxpushes = 1\n")
    base = "https://hg.example.com:8443"
    _status, headers, body = site.get("/pushloghtml", "startID=0", script=script)
    wanted = f"{base}/{script.strip('/')}/pushloghtml?startID=1".replace("8443//", "8443/")
    assert urljoin(f"{base}/x", headers["Link"].split(">")[0][1:]) == wanted
    on_page = re.search(rb'rel="next" href="([^"]*)"', body)[1].decode()
    assert urljoin(f"{base}/x", html.unescape(on_page)) == wanted


@pytest.mark.parametrize("path", ["/json-pushes", "/pushlog", "/pushloghtml"])
def test_a_repository_may_have_any_name(copy, path):
    name = '/\xc3\xb6 "><\r\n'  # as WSGI has it
    status, headers, body = Site(copy, "[pushlog]\nmaxpushes = 3\n").get(path, "startID=0", script=name)
    assert status == 200
    letter = "%C3%83%C2%B6" if versions.is_older_than((6, 4)) else "%C3%B6"  # Mercurial 6.3 encodes it twice
    assert f"/{letter}%20%22%3E%3C%0D%0A/" in headers["Link"]
    if path == "/pushlog":
        feed = ElementTree.fromstring(body)
        base = f"http://hg.example.com/{letter}%20%22%3E%3C%0D%0A/"
        links = [each.get("href") for each in feed.iter("{http://www.w3.org/2005/Atom}link")]
        names = [each.text for each in feed.iter("{http://www.w3.org/2005/Atom}id")]
        assert all(each.startswith(base) for each in links + names)


def test_an_answer_as_long_as_allowed_is_not_cut(copy):
    assert (
        "Link"
        not in Site(copy, "[pushlog]\nmaxpushes = 8\n").get(
            "/json-pushes", "user=alice%40example.com&user=bob%40example.com"
        )[1]
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("settings", ["", "[pushlog]\nmaxpushes = 0\n"])
def test_an_answer_is_complete_unless_an_operator_limits_it(long_history, settings):
    status, headers, body = Site(long_history, settings).get("/json-pushes", "startID=0")
    assert (status, ids(body)) == (200, list(range(1, LONG + 1)))
    assert list(json.loads(body)) == sorted(json.loads(body), key=str)
    assert "Link" not in headers


LONG = 12_000
# Enough where the memory is traced, which is slow.
SOME = 4_000


@pytest.fixture(scope="module")
def long_history(tmp_path_factory):
    """More pushes than an answer had without being asked for all."""
    folder = tmp_path_factory.mktemp("long")
    (folder / "hgrc").write_text("[extensions]\n*:required = yes\npushlog =\n")
    with environment_variable("HGRCPATH", str(folder / "hgrc")):
        million_pushes.build(folder / "long", LONG)
    return folder / "long"


def test_a_complete_answer_is_made_in_bounded_memory(long_history):
    site, peaks = Site(long_history), []
    site.get("/json-pushes", "startID=0")
    for first in (LONG * 2 // 3, 0):
        tracemalloc.start()
        answer = site.answer("/json-pushes", f"startID={first}")
        size = sum(map(len, answer))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert size > 2 * LONG * 40
    assert peaks[1] < 1.3 * peaks[0]


@pytest.mark.sample(1)
@pytest.mark.parametrize("query", ["full=1", ""])
def test_a_push_of_many_changesets_is_answered_in_bounded_memory(long_history, tmp_path, monkeypatch, query):
    monkeypatch.setattr(commands, "_BATCH", 100)
    folder = tmp_path / "one"
    shutil.copytree(long_history, folder)
    with sqlite3.connect(folder / ".hg" / "pushlog2.db") as database_:
        database_.execute("DELETE FROM changesets WHERE rev >= ?", [SOME])
        database_.execute("UPDATE changesets SET pushid = 1")
    site = Site(folder)
    site.get("/json-pushes", "startID=0")
    tracemalloc.start()
    pieces = list(map(len, site.answer("/json-pushes", f"startID=0&{query}")))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert max(pieces) < 100_000
    # The names of the changesets take a quarter of that; all as objects would take twice as much.
    assert peak < 2_700_000
    status, _headers, body = site.get("/json-pushes", f"startID=0&{query}")
    assert (status, len(json.loads(body)["1"]["changesets"])) == (200, SOME)
    assert body.decode() == json.dumps(json.loads(body), sort_keys=True)


def test_pushes_of_many_changesets_are_read_a_few_at_a_time(place, server, monkeypatch):
    for push, many in enumerate((8, 1, 1, 1)):
        for number in range(many):
            place("source").commit(b"%d of %d" % (number, push))
        place("source").push_to(server)
    batches, pushes_with = [], database.pushes_with
    monkeypatch.setattr(database, "pushes_with", lambda at, ids: batches.append(list(ids)) or pushes_with(at, ids))
    site = Site(server.folder)
    site.get("/json-pushes")
    monkeypatch.setattr(commands, "_BATCH", 2)
    batches.clear()
    assert ids(site.get("/json-pushes", "startID=0")[2]) == [1, 2, 3, 4, 5, 6, 7]
    assert batches == [[1, 2], [3, 4], [5], [6, 7]]


@pytest.mark.parametrize("name", ["changeset", "fromchange", "tochange"])
@pytest.mark.parametrize("working_directory", ["f" * 40, "f" * 12, "2147483647"])
def test_the_id_of_the_working_directory_is_an_unknown_changeset(site, name, working_directory):
    status, _headers, body = site.get("/json-pushes", f"startID=0&{name}={working_directory}")
    assert (status, body) == (404, b'{\n"error": "unknown revision \'%s\'"\n}' % working_directory.encode())


@pytest.mark.parametrize("null", ["0" * 40, "null"])
def test_the_null_changeset_is_known_and_was_never_pushed(site, null):
    assert site.get("/json-pushes", f"changeset={null}")[::2] == (200, b"{}")
    assert site.get("/json-pushes", f"fromchange={null}")[2] == site.get("/json-pushes", "startID=0")[2]
    status, _headers, body = site.get("/json-pushes", f"startID=0&tochange={null}")
    assert (status, json.loads(body)) == (404, {"error": f"changeset '{null}' was never pushed"})


@pytest.mark.parametrize("limit", [0, 9, 16, None])
def test_replicated_data_limits_web_answers(copy, limit):
    data = {b"heads": [b"x" * 20], b"last_push_id": limit}
    (copy / ".hg" / "replicated-data").write_bytes(b"".join(cborutil.streamencode(data)))
    answer = json.loads(Site(copy).get("/json-pushes", "startID=0&version=2")[2])
    allowed = 16 if limit is None else limit
    assert answer["lastpushid"] == allowed
    assert max(map(int, answer["pushes"]), default=0) == allowed


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["replicated-data", "pushlog2.db", "store/pushlog.log", "store/pushlog-strip.log"])
def test_a_pipe_in_place_of_a_file_of_the_pushlog_holds_up_no_page(copy, name):
    site, file = Site(copy), copy / ".hg" / name
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    try:
        assert site.get("/json-pushes", "startID=0&full=1")[0] in (200, 500)
    except OSError as problem:
        assert "Not a file" in str(problem)  # noqa: PT017


HOSTILE = [
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "line\nbreak\r\n]]>-->",
    "‮gnp.exe\u2066",
    "\0\x01\x1b[31m",
    "&amp;&lt;",
    "é" * 10,
    "😀\ufffe",
    "a" * 1_000_000,
]


class Page(html.parser.HTMLParser):
    """What a browser would see: elements and attributes."""

    def __init__(self):
        super().__init__()
        self.elements = []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))


@pytest.mark.sample(2)
@pytest.mark.parametrize("style", ["paper", "gitweb", "spartan", "monoblue", "coal"])
def test_hostile_users_are_text_on_every_page(copy, style):
    for number, user in enumerate(HOSTILE, start=1):
        sql(copy, "INSERT OR REPLACE INTO pushlog VALUES (?, ?, ?)", number, user, 1500000000)
    status, _headers, body = Site(copy).get("/pushloghtml", f"startID=0&style={style}&branch=&user=")
    assert status == 200
    assert len(body) < 200_000
    page = Page()
    page.feed(body.decode("utf-8", "replace"))
    assert not [each for each in page.elements if "onerror" in each[1] or "style" in each[1] or "onclick" in each[1]]
    assert [each[1]["src"] for each in page.elements if each[0] == "script"] in (["/static/mercurial.js"], [])
    assert len([each for each in page.elements if each[1].get("class") == "pushuser"]) == 12


def test_hostile_users_are_text_in_feed_and_json(copy):
    for number, user in enumerate(HOSTILE, start=1):
        sql(copy, "INSERT OR REPLACE INTO pushlog VALUES (?, ?, ?)", number, user, 1500000000)
    site = Site(copy)
    pushes = json.loads(site.get("/json-pushes", "startID=0")[2])
    assert [pushes[str(number)]["user"] for number in (1, 2, 3, 4)] == HOSTILE[:4]
    feed = ElementTree.fromstring(site.get("/pushlog", "startID=0")[2])
    names = {element.text for element in feed.iter("{http://www.w3.org/2005/Atom}name")}
    assert {HOSTILE[0], HOSTILE[1]} <= names


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """A repository whose pushes are hostile in every text that a changeset has: author, description, branch, file name."""
    monkeypatch.setattr(encoding, "fromlocal", lambda text: text)  # what a client sends is stored as it is
    site = Site(tmp_path / "hostile", create=True)
    repository = site.repository
    parent = repository.nullid
    texts = [*(text.encode() for text in HOSTILE), b"caf\xe9 \xff\xfe"]
    for number, text in enumerate(texts):
        name = b"docs/" + text.replace(b"\n", b"").replace(b"\r", b"").replace(b"\0", b"")[:200]
        line = text.replace(b"\n", b" ").replace(b"\0", b"")[:100_000]

        def file(repo, ctx, path, line=line):
            return context.memfilectx(repo, ctx, path, line)

        with repository.wlock(), repository.lock(), repository.transaction(b"test") as tr:
            made = context.memctx(
                repository,
                (parent, repository.nullid),
                text.replace(b"\0", b"") + b"\n\nmore",
                [name],
                file,
                user=line,
                date=(0, 0),
                branch=b"branch " + line[:200],
            )
            parent = repository.commitctx(made)
            user = text.decode("utf-8", "replace")
            session_of(Pushlog(repository), tr).record(user, 1500000000 + number, (parent.hex(),))
    monkeypatch.undo()
    return Site(tmp_path / "hostile")


@pytest.mark.sample(2)
@pytest.mark.parametrize("style", ["paper", "gitweb", "spartan", "monoblue", "coal"])
def test_hostile_changesets_are_text_on_every_page(hostile, style):
    status, _headers, body = hostile.get("/pushloghtml", f"startID=0&style={style}")
    assert status == 200
    assert len(body) < 1_000_000
    page = Page()
    page.feed(body.decode("utf-8", "replace"))
    assert not [each for each in page.elements if {"onerror", "onclick", "style"} & each[1].keys()]
    assert [each[1]["src"] for each in page.elements if each[0] == "script"] in (["/static/mercurial.js"], [])
    assert not [each for each in page.elements if each[0] == "img" and not each[1]["src"].startswith("/static/")]
    assert len([each for each in page.elements if each[1].get("class") == "pushuser"]) == len(HOSTILE) + 1


@pytest.mark.parametrize("version", [1, 2])
def test_hostile_changesets_are_text_in_json(hostile, version):
    status, _headers, body = hostile.get("/json-pushes", f"startID=0&full=1&version={version}")
    assert status == 200
    assert body.isascii()
    assert b"<" not in body
    check(body, version)
    answer = json.loads(body)
    pushes = answer["pushes"] if version == 2 else answer
    for number, text in enumerate(HOSTILE, start=1):
        [changeset] = pushes[str(number)]["changesets"]
        assert changeset["desc"] == text.replace("\0", "").replace("\r", "") + "\n\nmore"  # Mercurial strips lines
        assert pushes[str(number)]["user"] == text


def test_hostile_changesets_are_text_in_the_feed(hostile):
    status, _headers, body = hostile.get("/pushlog", "startID=0")
    assert status == 200
    feed = ElementTree.fromstring(body)
    elements = {element.tag.rpartition("}")[2] for element in feed.iter()}
    assert not elements & {"script", "img"}
    assert len(list(feed.iter("{http://www.w3.org/2005/Atom}entry"))) == len(HOSTILE) + 1


def test_a_user_that_is_not_utf_8_is_shown_somehow(copy):
    sql(copy, "UPDATE pushlog SET user = CAST(? AS TEXT) WHERE id = 16", b"caf\xe9")
    for path in ("/json-pushes", "/pushlog", "/pushloghtml", "/json-rev/tip"):
        assert Site(copy).get(path)[0] == 200


@pytest.mark.parametrize("column", ["date", "user"])
def test_a_row_with_nothing_in_it_is_shown_somehow(copy, column):
    sql(copy, f"UPDATE pushlog SET {column} = NULL WHERE id = 16")
    for path in ("/json-pushes", "/pushlog", "/pushloghtml", "/json-rev/tip"):
        assert Site(copy).get(path)[0] == 200


def test_a_database_behind_the_file_shows_what_the_file_has(copy):
    """Killed between Mercurial's commit and SQLite's, and `.hg` cannot be written."""
    from pushlog.store import storage
    from tests.pushlog.conftest import Site as _Site

    site = _Site(copy)
    repository = site.repository
    log = storage.Pushlog(repository)
    with repository.lock(), repository.transaction(b"test") as tr:
        session_of(log, tr)
    with repository.lock(), repository.transaction(b"test") as tr:
        node = repository.changelog.node(1).hex()
        log.file.append(tr, [entry.encode(entry.Push(id=17, user="late", date=1500000000, nodes=(node,)))])
    with database_closed(copy) as before:
        assert before == 16
    assert ids(site.get("/json-pushes", "startID=15")[2]) == [16, 17]
    assert json.loads(site.get("/json-rev/1")[2])["pushuser"] == "late"
    assert json.loads(site.get("/json-pushes", "user=late")[2])["17"]["changesets"] == [node]


class database_closed:
    """The newest id in SQLite itself."""

    def __init__(self, folder):
        self._connection = sqlite3.connect(folder / ".hg" / "pushlog2.db")

    def __enter__(self):
        return database.last_id(self._connection)

    def __exit__(self, *_failure):
        self._connection.close()


@pytest.mark.parametrize("path", ["/json-pushes", "/pushloghtml", "/pushlog"])
def test_a_damaged_pushlog_is_one_line_and_no_accident(copy, path):
    with open(copy / ".hg" / "pushlog2.db", "r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096)
    status, _headers, body = Site(copy).get(path)
    assert status == 500
    assert b"the pushlog cannot be read: database disk image is malformed" in body
    assert b"Traceback" not in body


def test_titles_say_what_was_asked(site):
    body = site.get("/pushloghtml", "startID=2&endID=6&user=bob%40example.com&user=a")[2]
    assert b"Changes pushed after push ID 2, up to and including push ID 6, by user bob@example.com or a" in body


def test_pages_have_links_to_the_others(site):
    body = site.get("/pushloghtml/2")[2].decode()
    assert 'pushloghtml/1">First</a>' in body
    assert "Next" not in body


def page_links(site, path, query):
    """The links to other pages, as (label, address)."""
    body = site.get(path, query)[2].decode()
    found = re.search(r'<div class="navigate pushlogpages">(.*?)</div>', body)
    return re.findall(r'<a href="([^"]*)">(\w+)</a>', html.unescape(found[1])) if found else []


@pytest.mark.parametrize("page", ["", "/1", "/2"])
def test_pages_of_a_branch_end_where_it_ends(site, page):
    links = page_links(site, f"/pushloghtml{page}", "branch=stable")
    wanted = [("/pushloghtml/1?branch=stable", label) for label in ("First", "Prev")] if page == "/2" else []
    assert links == wanted


def test_links_to_other_pages_stay_on_the_branch(long_history):
    site, seen = Site(long_history), []
    for number in (1, 2, LONG // 10):
        links = page_links(site, f"/pushloghtml/{number}", "branch=default&style=paper&tipsonly=1")
        assert all(target.endswith("?branch=default&style=paper&tipsonly=1") for target, _label in links)
        seen.append([(label, int(target.split("?")[0].rpartition("/")[2])) for target, label in links])
    assert seen == [
        [("Next", 2)],
        [("First", 1), ("Prev", 1), ("Next", 3)],
        [("First", 1), ("Prev", LONG // 10 - 1)],
    ]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Mercurial's own pages
def test_every_link_on_a_page_works(site):
    page = Page()
    page.feed(site.get("/pushloghtml", "startID=0")[2].decode())
    targets = {
        attributes["href"] for tag, attributes in page.elements if tag == "a" and attributes["href"].startswith("/")
    }
    assert len(targets) > 30
    for target in targets - {"/"}:
        parts = urlsplit(target)
        assert site.get(parts.path, parts.query)[0] == 200, target


def test_other_encodings_of_the_server_keep_the_feed_whole(copy):
    before = encoding.encoding
    try:
        feed = Site(copy, "[web]\nencoding = ascii\n").get("/pushlog", "startID=2&endID=3")[2]
    finally:
        encoding.encoding = before
    assert b'encoding="ascii"' in feed
    names = [element.text for element in ElementTree.fromstring(feed).iter("{http://www.w3.org/1999/xhtml}li")]
    assert "docs/größe-日本.txt" in names
    assert os.path.exists(copy / ".hg" / "pushlog2.db")


@pytest.mark.parametrize("name", ["ascii", "latin-1", "utf-8"])
def test_names_are_found_in_any_encoding_of_the_server(place, server, monkeypatch, name):
    set_branch(place("source").repository, "été".encode())
    node = place("source").commit(b"d")
    place("source").push_to(server)
    monkeypatch.setattr(encoding, "encoding", encoding.encoding)
    site = Site(server.folder, f"[web]\nencoding = {name}\n")
    for query in ("branch=%C3%A9t%C3%A9", "changeset=%C3%A9t%C3%A9"):
        status, _headers, body = site.get("/json-pushes", query)
        assert (status, json.loads(body)["4"]["changesets"]) == (200, [node])
    assert site.get("/json-pushes", "branch=%C3%A9")[0] == 404
