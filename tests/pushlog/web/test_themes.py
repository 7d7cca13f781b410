# SPDX-License-Identifier: GPL-2.0-or-later
"""Templates of a site's own: what they print is text, what they make is markup, and their policy is the operator's."""

import subprocess

import pytest
from mercurial import templater, templateutil

from pushlog.web import escaping, page
from testing.warm_hg import shared_hg, shared_python
from tests.pushlog import hostile
from tests.pushlog.conftest import Site, environment

# Mercurial leaves the files of its templates to the garbage collector
pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
TEXT = b'<b>bold & "this"</b>'
ESCAPED = b"&lt;b&gt;bold &amp; &quot;this&quot;&lt;/b&gt;"


def rendered(source, **values):
    """What this template of HTML prints for values as hgweb gives them."""
    escaping.register()
    cache = {b"": source, b"item": b"<i>{text}</i>", b"plain": b"<u>", b"mimetype": b"text/html"}
    templates = templater.templater(
        cache=cache, filters={b"websub": lambda text: text.replace(b"bold", b"<em>bold</em>")}
    )
    assert escaping.guard(templates)
    usual = {
        b"text": TEXT,
        b"list": templateutil.hybridlist([TEXT, TEXT], b"text"),
        b"map": templateutil.hybriddict({b"a": TEXT}),
        b"mappings": templateutil.mappinglist([{b"text": TEXT}, {b"text": TEXT}], name=b"item"),
        b"literal": templateutil.mappinglist([{b"text": TEXT}], tmpl=b"{text}"),
        b"pieces": iter([b"<hr>"]),
        b"number": 3,
        b"one": True,
    }
    return templates.render(b"", {**usual, **{name.encode(): value for name, value in values.items()}})


@pytest.mark.parametrize(
    "source",
    [
        b"{text}",
        b"{(text)}",
        b"{text|firstline}",
        b"{firstline(text)}",
        b"{if(one, text)}",
        b"{if(nothing, 'x', text)}",
        b"{ifeq(number, 3, text)}",
        b"{ifeq(number, 4, 'x', text)}",
        b"{ifcontains(text, list, text)}",
        b"{separate(' ', text)}",
        b"{if(one, if(one, text))}",
        b"{sub('nothing', 'x', text)}",
        b"{sub('nothing', '<br>', text)}",
        b"{sub('^.*$', text, 'x')}",
        b"{strip(text)}",
        b"{pad(text, 3)}",
        b"{indent(text, '')}",
        b"{fill(text, 200)}",
        b"{startswith('<b>', text)}",
        b"{get(map, 'a')}",
        b"{map.a}",
        b"{map % '{value}'}",
        b"{literal}",
        b"{'{text}'}",
        b"{text|nonempty}",
        b"{if(one, '{text}')}",
        b"{dict(a=text).a}",
    ],
)
def test_what_an_expression_prints_is_text(source):
    assert rendered(source) == ESCAPED


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (b"{list}", ESCAPED + b" " + ESCAPED),
        (b"{join(list)}", ESCAPED + b" " + ESCAPED),
        (b"{join(list, '<br>')}", ESCAPED + b"<br>" + ESCAPED),
        (b"{join(list, text)}", ESCAPED * 3),
        (b"{join(list % '{text}', '<br>')}", ESCAPED + b"<br>" + ESCAPED),
        (b"{join(mappings, '<br>')}", b"<i>" + ESCAPED + b"</i><br><i>" + ESCAPED + b"</i>"),
        (b"{list % '<p>{text}</p>'}", (b"<p>" + ESCAPED + b"</p>") * 2),
        (b"{mappings%item}", (b"<i>" + ESCAPED + b"</i>") * 2),
        (b"{mappings}", (b"<i>" + ESCAPED + b"</i>") * 2),
        (b"{separate('<br>', text, text)}", ESCAPED + b"<br>" + ESCAPED),
        (b"{sub('bold', '<em>', text)}", ESCAPED.replace(b"bold", b"<em>")),
        (b"{text|websub}", ESCAPED.replace(b"bold", b"<em>bold</em>")),
        (b"{websub(text)}", ESCAPED.replace(b"bold", b"<em>bold</em>")),
        (b"{text|addbreaks}", ESCAPED),
    ],
)
def test_markup_of_the_template_stays_around_text(source, expected):
    assert rendered(source) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (b"{text|escape}", ESCAPED),
        (b"{escape(text)}", ESCAPED),
        (b"{text|escape|firstline}", ESCAPED),
        (b"{text|escape|websub|addbreaks}", ESCAPED.replace(b"bold", b"<em>bold</em>")),
        (b"{sub('bold', '<em>', text|escape)}", ESCAPED.replace(b"bold", b"<em>")),
        (b"{if(one, text|escape, text)}", ESCAPED),
        (b"{strip(text|escape)}", ESCAPED),
        (b"{separate('<br>', escape(text), '<hr>')}", ESCAPED + b"<br><hr>"),
        (b"{plain}{pieces}", b"<u><hr>"),
        (b"{number}{number + 1}", b"34"),
        (b"{if(one, plain)}", b"<u>"),
        (b"{pad('<p>', 3)}", b"<p>"),
        (b"{text|urlescape}", b"%3Cb%3Ebold%20%26%20%22this%22%3C/b%3E"),
    ],
)
def test_nothing_is_escaped_twice_and_markup_is_left_alone(source, expected):
    assert rendered(source) == expected


def test_a_value_cannot_leave_an_attribute_in_single_quotes():
    assert rendered(b"<a title='{quote}'>", quote=b"' onclick='x()") == b"<a title='&#39; onclick=&#39;x()'>"


def test_templates_of_plain_text_are_left_alone():
    templates = templater.templater(cache={b"": b"{text}", b"mimetype": b"text/plain"})
    assert not escaping.guard(templates)
    assert templates.render(b"", {b"text": TEXT}) == TEXT


@pytest.mark.parametrize(
    ("source", "linked"),
    [
        (b'<ul>\n<li><a href="{url|urlescape}graph{sessionvars%urlparameter}">graph</a></li>\n</ul>', True),
        (b'a |\n<a href="{url|urlescape}graph/{symrev}{sessionvars%urlparameter}">graph</a> |\n', True),
        (b'<ul>\n<li class="active">graph</li>\n</ul>', True),
        (b"a |\ngraph |\n", True),
        (b"<p>\na graph |\n", False),
        (
            b'<a href="{url|urlescape}graph{sessionvars%urlparameter}">graph</a>\n<a href="pushloghtml">ours</a>\n',
            False,
        ),
        (b'<a href="{url|urlescape}graph/{node|short}{sessionvars%urlparameter}">graph</a>\n', False),
    ],
)
def test_navigation_like_mercurials_links_to_our_page_once(source, linked):
    link = b'<a href="{url|urlescape}pushloghtml{sessionvars%urlparameter}">pushlog</a>'
    assert (link in page.add_link(source)) is linked
    assert page.add_link(source).count(b"\n") == source.count(b"\n") + linked


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory):
    """A repository with nothing to escape but one author, and the addresses of its pages."""
    folder = tmp_path_factory.mktemp("ordinary")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(hostile, "EVIL", "plain text")
        monkeypatch.setattr(hostile, "NAME", "plain")
        settings = "[experimental]\nevolution = all\n[ui]\nusername = test\n"
        with pytest.MonkeyPatch.context() as inner:
            names = hostile.fill(Site(folder / "ordinary", settings, create=True).repository, inner)
        found = [(path, query) for path, query in hostile.addresses(names) if "help/revsets" not in path]
    return Site(folder / "ordinary", settings + "[web]\ncsp =\n"), found


@pytest.mark.sample(1)
@pytest.mark.parametrize("style", hostile.STYLES)
def test_pages_with_nothing_to_escape_are_mercurials_own_byte_for_byte(ordinary, style, monkeypatch):
    site, found = ordinary

    def pages():
        return {where: site.get(f"/{where[0]}", f"{where[1]}&style={style}".lstrip("&"))[2] for where in found[::3]}

    mended = pages()
    monkeypatch.setattr(escaping, "escaped", lambda tree: tree)
    for where, body in pages().items():
        assert mended[where] == body.replace(b"<xevil xevil=1>", b"&lt;xevil xevil=1&gt;"), where


def theme(folder, *, style="own"):
    """A folder of templates with one style, which shows a list of changesets."""
    (folder / style).mkdir(parents=True)
    (folder / style / "map").write_text(
        "default = 'shortlog'\nfiledifflink = '{file}'\nfilenodelink = '{file}'\nnochangesfile = ''\n"
        "mimetype = 'text/html; charset={encoding}'\nerror = '{error}'\n"
        "shortlog = '<script>ours()</script>{entries%row}'\n"
        'row = \'<p title="{firstline(desc)}">{author} {desc} {tags % "{name}"} {join(files, ", ")}</p>\'\n'
    )
    return folder


def test_a_theme_of_a_site_escapes_and_has_no_policy_but_the_operators(tmp_path):
    settings = (
        f"[experimental]\nevolution = all\n[ui]\nusername = test\n[web]\ntemplates = {theme(tmp_path / 'themes')}\n"
    )
    with pytest.MonkeyPatch.context() as monkeypatch:
        hostile.fill(Site(tmp_path / "site", settings, create=True).repository, monkeypatch)
    status, headers, body = Site(tmp_path / "site", settings + "style = own\n").get("/shortlog")
    assert (status, headers.get("Content-Security-Policy")) == (200, None)
    assert body.count(b"<p title=") >= hostile.REVISIONS
    page = hostile.Page(body.replace(b"<script>ours()</script>", b""))
    assert not page.intrusions()
    headers = Site(tmp_path / "site", settings + "csp = default-src 'self'\n").get("/shortlog", "style=own")[1]
    assert headers["Content-Security-Policy"] == "default-src 'self'"


@pytest.mark.parametrize(
    ("address", "origin"),
    [
        ("//cdn.example:8443/static/", " cdn.example:8443"),
        ("https://cdn.example", " https://cdn.example"),
        ("http://user:secret@cdn.example/a", " http://cdn.example"),
        ("/static/", ""),
        ("//cdn.example; script-src */", ""),
        ("https://cdn.example'unsafe-inline'/", ""),
        ("javascript://x/", ""),
    ],
)
def test_the_policy_allows_the_static_files_of_another_host(root, address, origin):
    policy = Site(root / "golden", f"[web]\nstaticurl = {address}\n").get("/shortlog")[1]["Content-Security-Policy"]
    assert f"script-src 'self'{origin} 'nonce-" in policy
    assert f"style-src 'self'{origin};" in policy
    assert f"img-src 'self'{origin};" in policy
    assert "connect-src 'self';" in policy


@pytest.mark.parametrize(("style", "has_policy"), [("gitweb", True), ("own", False)])
def test_a_style_that_mercurial_does_not_ship_has_no_policy(root, style, has_policy):
    headers = Site(root / "golden", f"[web]\nstyle = {style}\n").get("/shortlog")[1]
    assert ("Content-Security-Policy" in headers) is has_policy


HIGHLIGHTED = r"""
import os, sys
from pushlog.versions import initialize
initialize()
from mercurial.hgweb import hgweb
application = hgweb(os.fsencode(sys.argv[1]))
for path in ("/file/tip/code.py", "/annotate/tip/code.py"):
    environment = {
        "wsgi.url_scheme": "http", "wsgi.input": None, "SERVER_NAME": "x", "SERVER_PORT": "80", "SCRIPT_NAME": "",
        "PATH_INFO": path, "QUERY_STRING": "style=" + sys.argv[2], "REQUEST_METHOD": "GET",
    }
    sys.stdout.buffer.write(b"".join(application(environment, lambda *_started: None)))
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("style", ["paper", "spartan"])
def test_the_colours_of_highlight_are_markup_and_the_code_is_text(tmp_path, style):
    (tmp_path / "hgrc").write_text("[extensions]\n*:required = yes\nhighlight =\npushlog =\n[ui]\nusername = test\n")
    where = environment(tmp_path)
    subprocess.run([shared_hg(where), "init", str(tmp_path / "site")], env=where, check=True)
    (tmp_path / "site" / "code.py").write_text("import os  # <xevil>\n")
    subprocess.run([shared_hg(where), "-R", str(tmp_path / "site"), "commit", "-qAm", "code"], env=where, check=True)
    command = [shared_python(where), "-c", HIGHLIGHTED, str(tmp_path / "site"), style]
    body = subprocess.run(command, env=where, stdout=subprocess.PIPE, check=True).stdout
    assert body.count(b'<span class="kn">import</span>') == 2
    assert b"&lt;xevil&gt;" in body
    assert not hostile.Page(body).intrusions()
