# SPDX-License-Identifier: GPL-2.0-or-later
"""Pages in a real browser: ours under a policy that allows next to nothing, all of them under the one that is the default.

With VCSREPLICATOR_TEST_SCREENSHOTS=FOLDER our page is kept there as a picture in each style, width and scheme, to be looked at.
"""

import base64
import contextlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import quote

import pytest
from mercurial import bookmarks, context
from mercurial.node import hex
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By

from pushlog.store.session import session_of
from pushlog.store.storage import Pushlog
from testing.builders.browser import find_barriers, open_browser
from testing.waiting import eventually
from testing.warm_hg import shared_hg
from tests.pushlog.conftest import Site, environment
from tests.pushlog.hostile import STYLES, fill

pytestmark = pytest.mark.processes

POLICY = "default-src 'none'; style-src 'self'; img-src 'self'; script-src 'self'; form-action 'self'"


@contextlib.contextmanager
def serving(folder, repository, settings=""):
    """The URL of a server."""
    (folder / "hgrc").write_text(f"[extensions]\n*:required = yes\npushlog =\n{settings}")
    command = [
        shared_hg(environment(folder)),
        "serve",
        "-R",
        str(repository),
        "-a",
        "127.0.0.1",
        "-p",
        "0",
        "--print-url",
        "--accesslog",
        os.devnull,  # not the pipe, of which only the first line is read
    ]
    process = subprocess.Popen(
        command, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    with process.stdout:
        yield "http://127.0.0.1:" + process.stdout.readline().decode().rstrip("/\n").rpartition(":")[2]
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def address(root, tmp_path_factory):
    """The URL of a server of the golden repository with that policy."""
    with serving(tmp_path_factory.mktemp("browser"), root / "golden", f"[web]\ncsp = {POLICY}\n") as address:
        yield address


@pytest.fixture(scope="module")
def address_by_default(root, tmp_path_factory):
    with serving(tmp_path_factory.mktemp("default"), root / "golden") as address:
        yield address


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """The URL of a server of a hostile repository, and the names of its files; the templates' own escaping is all that helps."""
    folder = tmp_path_factory.mktemp("hostile")
    with pytest.MonkeyPatch.context() as monkeypatch:
        names = fill(
            Site(
                folder / "hostile", "[experimental]\nevolution = all\n[ui]\nusername = test\n", create=True
            ).repository,
            monkeypatch,
        )
    with serving(folder, folder / "hostile", "[web]\ncsp =\n") as address:
        yield address, names


@pytest.fixture(scope="module")
def browser():
    with open_browser("window-size=1280,900") as browser:
        yield browser


def complaints(browser):
    return [entry["message"] for entry in browser.get_log("browser") if "favicon" not in entry["message"]]


def texts(browser, selector):
    """What the page shows there; nothing while one page gives way to the next."""
    try:
        return [element.text for element in browser.find_elements(By.CSS_SELECTOR, selector)]
    except StaleElementReferenceException:
        return []


@pytest.mark.sample(1)
@pytest.mark.parametrize("style", ["paper", "gitweb"])
def test_the_page_shows_pushes_and_breaks_no_rule(browser, address, style):
    browser.get(f"{address}/pushloghtml?style={style}")
    assert complaints(browser) == []
    assert texts(browser, ".pushid a") == ["#16", "#15", "#14", "#13", "#12", "#10", "#9", "#6"]
    assert texts(browser, ".pusher .pushuser")[1] == "o'\"b<r>i&en@example.com"
    assert texts(browser, "#push13 .firstline") == ["amended", "feature, first try"]
    table = browser.find_element(By.CSS_SELECTOR, ".pushlogtable")
    assert table.value_of_css_property("table-layout") == "fixed", "our style sheet is not in use"
    assert table.size["width"] <= 1280


def test_the_form_searches_and_keeps_what_was_typed(browser, address):
    browser.get(f"{address}/pushloghtml")
    for name, value in (("startdate", "2016-01-01"), ("enddate", "2016-06-30"), ("user", "landing@example.com")):
        field = browser.find_element(By.NAME, name)
        field.clear()
        field.send_keys(value)
    browser.find_element(By.CSS_SELECTOR, ".pushlogform input[type=submit]").click()
    eventually(lambda: texts(browser, ".pushid a") == ["#13", "#10"], "the answer")
    assert texts(browser, ".pushlogquery") == [
        "Changes pushed after 2016-01-01, before 2016-06-30, by user landing@example.com"
    ]
    assert browser.find_element(By.NAME, "user").get_attribute("value") == "landing@example.com"


def test_page_links_lead_to_older_pushes_and_a_push_has_an_address(browser, address):
    browser.get(f"{address}/pushloghtml")
    browser.find_element(By.LINK_TEXT, "Next").click()
    eventually(lambda: texts(browser, ".pushid a") == ["#4", "#3", "#2", "#1"], "the older page")
    browser.find_element(By.LINK_TEXT, "#3").click()
    eventually(lambda: texts(browser, ".pushid a") == ["#3"], "the page of one push")
    browser.find_element(By.LINK_TEXT, "converted from git").click()
    eventually(lambda: "/rev/899299d5bc0e" in browser.current_url, "the changeset's page")


PAGES = [
    "shortlog",
    "graph",
    "rev/4",
    "pushloghtml",
    "file/tip",
    "annotate/tip/docs/%2Bplus%2B.txt",
    "tags",
    "branches",
]


@pytest.mark.sample(1)
@pytest.mark.parametrize("style", STYLES)
def test_no_page_breaks_the_rules_that_are_the_default(browser, address_by_default, style):
    complaints(browser)
    for page in PAGES:
        browser.get(f"{address_by_default}/{page}?style={style}")
        assert complaints(browser) == [], page
        assert browser.find_elements(By.CSS_SELECTOR, "link[rel=stylesheet]")


DRAWN = """
const canvas = document.getElementById('graph');
return canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(part => part != 0);
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("style", STYLES)
def test_the_scripts_of_mercurial_run_by_default(browser, address_by_default, style):
    browser.get(f"{address_by_default}/graph?style={style}")
    assert browser.execute_script(DRAWN), "no graph was drawn"
    browser.get(f"{address_by_default}/rev/4?style={style}")
    assert not browser.execute_script("return typeof(process_dates) == 'undefined'")


def test_a_script_that_is_not_a_page_s_own_does_not_run(browser, address_by_default):
    browser.get(f"{address_by_default}/shortlog")
    complaints(browser)
    browser.execute_script("""
        const image = document.createElement('div');
        image.innerHTML = '<img src="/nosuch" onerror="window.intruded = true">';
        document.body.appendChild(image);
        const script = document.createElement('script');
        script.textContent = 'window.intruded = true';
        document.body.appendChild(script);
    """)
    eventually(lambda: len(complaints(browser)) >= 1, "the browser's refusal")
    assert not browser.execute_script("return window.intruded")


@pytest.mark.sample(1)
@pytest.mark.parametrize("style", STYLES)
def test_a_hostile_name_is_text_in_a_browser_without_any_policy(browser, hostile, style):
    address, names = hostile
    renamed = quote(names["renamed"])
    for page in ("shortlog", "graph", "rev/2", f"log/2/{renamed}", f"annotate/2/{renamed}", "pushloghtml?startID=0"):
        browser.get(f"{address}/{page}{'&' if '?' in page else '?'}style={style}")
        assert "xevil" in browser.page_source or page.startswith("pushloghtml")
        assert not browser.find_elements(By.CSS_SELECTOR, "xevil, [xevil], [onerror]"), page
    assert not [message for message in complaints(browser) if "xevil" in message]


WORD = "word" * 25


@pytest.fixture(scope="module")
def long_words(root, tmp_path_factory):
    """The URL of a server of a repository whose newest push has 25 changesets, and whose every text is one long word."""
    folder = tmp_path_factory.mktemp("long")
    shutil.copytree(root / "golden", folder / WORD)
    repository = Site(folder / WORD).repository
    nodes = [repository.changelog.tip()]
    with repository.wlock(), repository.lock(), repository.transaction(b"test") as tr:
        for _number in range(25):
            made = context.memctx(
                repository,
                (nodes[-1], repository.nullid),
                WORD.encode(),
                [],
                lambda *_: None,
                user=WORD.encode(),
                branch=WORD.encode(),
            )
            nodes.append(repository.commitctx(made))
        bookmarks.addbookmarks(repository, tr, [WORD.encode()], rev=hex(nodes[-1]), force=True)
        session_of(Pushlog(repository), tr).record(WORD, 1500000000, tuple(node.hex() for node in nodes[1:]))
    with serving(folder, folder / WORD) as address:
        yield address


@contextlib.contextmanager
def emulating(browser, *, width, scheme):
    """Let the browser be a screen of this width whose user prefers this scheme; a narrow one is a phone's."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 800}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    yield
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def show_all(browser, address, style):
    """Load the page of all pushes, with the rest of each push open."""
    browser.get(f"{address}/pushloghtml?startID=0&style={style}")
    browser.execute_script("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert len(texts(browser, "#push17 .firstline")) == 25


def keep(browser, name):
    folder = os.environ.get("VCSREPLICATOR_TEST_SCREENSHOTS")
    if folder:
        size = browser.execute_script("return [innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
        options = {"captureBeyondViewport": True, "clip": clip}
        shot = browser.execute_cdp_cmd("Page.captureScreenshot", options)["data"]
        (Path(folder) / f"{name}.png").write_bytes(base64.b64decode(shot))


# [text, its size in pixels, its contrast with what is behind it] of each text and field that is visible.
SHOWN_TEXTS = """
function channels(colour) { return colour.match(/[0-9.]+/g).map(Number); }
function luminance(colour) {
    const [red, green, blue] = channels(colour).map(value => value / 255).map(
        value => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
function background(element) {
    for (let each = element; each; each = each.parentElement) {
        const colour = getComputedStyle(each).backgroundColor;
        if (channels(colour)[3] !== 0) return colour;
    }
    return 'rgb(255, 255, 255)';
}
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT | NodeFilter.SHOW_ELEMENT);
const found = [];
while (walker.nextNode()) {
    const node = walker.currentNode;
    const element = node.nodeType == Node.TEXT_NODE ? node.parentElement : node;
    const text = node.nodeType == Node.TEXT_NODE ? node.data.trim() : node.tagName == 'INPUT' ? node.name || 'show' : '';
    if (!text || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const [darker, lighter] = [luminance(style.color), luminance(background(element))].sort((a, b) => a - b);
    found.push([text, parseFloat(style.fontSize), (lighter + 0.05) / (darker + 0.05)]);
}
return found;
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("style", STYLES)
def test_the_page_fits_a_phone_and_its_text_is_large_enough(browser, long_words, style):
    with emulating(browser, width=390, scheme="light"):
        show_all(browser, long_words, style)
        keep(browser, f"pushlog-{style}-390-light")
        assert browser.execute_script("return [innerWidth, document.documentElement.scrollWidth]") == [390, 390]
        shown = browser.execute_script(SHOWN_TEXTS)
    assert len(shown) > 100
    assert [(text, size) for text, size, _contrast in shown if size < 14] == []


@pytest.mark.sample(1)
@pytest.mark.parametrize("style", STYLES)
def test_each_time_names_its_zone_on_a_phone_which_shows_no_heading(browser, long_words, style):
    with emulating(browser, width=390, scheme="light"):
        show_all(browser, long_words, style)
        after = "return getComputedStyle(document.querySelector('.date'), '::after').content"
        assert browser.execute_script(after) == '" UTC"'


@pytest.mark.sample(1)
@pytest.mark.parametrize("width", [390, pytest.param(1280, marks=pytest.mark.slow)])
@pytest.mark.parametrize("style", STYLES)
def test_every_text_has_contrast_in_the_dark(browser, long_words, style, width):
    with emulating(browser, width=width, scheme="dark"):
        show_all(browser, long_words, style)
        keep(browser, f"pushlog-{style}-{width}-dark")
        background = browser.find_element(By.TAG_NAME, "body").value_of_css_property("background-color")
        shown = browser.execute_script(SHOWN_TEXTS)
    assert background == "rgba(22, 24, 28, 1)"
    assert len(shown) > 100
    assert [(text, contrast) for text, _size, contrast in shown if contrast < 4.5] == []


@pytest.mark.sample(1)
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("style", STYLES)
def test_our_part_of_the_page_bars_none_who_cannot_see_it(browser, long_words, style, scheme, width):
    """So says axe-core; around it is the frame of Mercurial's style, which lacks a language, and in light ones contrast."""
    with emulating(browser, width=width, scheme=scheme):
        show_all(browser, long_words, style)
        assert find_barriers(browser, ".pushlogform", ".pushlogtable", ".pushlogquery") == []


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("style", "start"), [*((style, "") for style in STYLES), ("gitweb", "summary"), ("monoblue", "summary")]
)
def test_the_start_page_links_to_the_page(browser, address_by_default, style, start):
    complaints(browser)
    browser.get(f"{address_by_default}/{start}?style={style}")
    browser.find_element(By.LINK_TEXT, "pushlog").click()
    eventually(lambda: browser.current_url.endswith(f"/pushloghtml?style={style}"), "our page in the same style")
    assert complaints(browser) == []


@pytest.mark.sample(1)
@pytest.mark.parametrize("style", STYLES)
def test_the_page_of_a_phone_in_the_dark_breaks_no_default_rule(browser, long_words, style):
    complaints(browser)
    with emulating(browser, width=390, scheme="dark"):
        show_all(browser, long_words, style)
        assert browser.find_element(By.CSS_SELECTOR, ".pushlogtable").value_of_css_property("display") == "block"
    assert complaints(browser) == []


@pytest.mark.sample(1)
@pytest.mark.parametrize("width", [390, 1280])
def test_a_hash_takes_twelve_digits_of_one_line_and_is_selected_whole(browser, long_words, width):
    with emulating(browser, width=width, scheme="light"):
        show_all(browser, long_words, "paper")
        script = """
            const link = document.querySelector('#push16 .changeset a');
            getSelection().selectAllChildren(link);
            return [String(getSelection()), link.offsetHeight < 30, link.offsetWidth < 110];
        """
        selected, is_one_line, is_short = browser.execute_script(script)
    assert re.fullmatch(r"59c28d31aa54[0-9a-f]{28}", selected)
    assert is_one_line
    assert is_short


def test_the_form_is_one_line_of_a_desk_in_the_default_style(browser, address_by_default):
    with emulating(browser, width=1280, scheme="light"):
        browser.get(f"{address_by_default}/pushloghtml?style=paper")
        fields = browser.find_elements(By.CSS_SELECTOR, ".pushlogform label, .pushlogform [type=submit]")
        middles = [each.rect["y"] + each.rect["height"] / 2 for each in fields]
    assert len(middles) == 6
    assert max(middles) - min(middles) < 10


@pytest.mark.sample(1)
@pytest.mark.parametrize("style", STYLES)
def test_hashes_are_as_large_as_text_and_the_form_is_readable(browser, address_by_default, style):
    with emulating(browser, width=1280, scheme="light"):
        browser.get(f"{address_by_default}/pushloghtml?style={style}")
        script = """
            return arguments[0].map(each => parseFloat(getComputedStyle(document.querySelector(each)).fontSize));
        """
        ours = [".changeset a", ".firstline", ".pushlogform label", ".pushlogpages a"]
        hash_, text, label, pages = browser.execute_script(script, ours)
        place = browser.find_element(By.NAME, "startdate").get_attribute("placeholder")
    assert hash_ == text
    assert min(label, pages) >= 13
    assert place == "YYYY-MM-DD"
