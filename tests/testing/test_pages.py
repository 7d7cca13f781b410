# SPDX-License-Identifier: GPL-2.0-or-later
"""The documentation as a site: every link leads to a page, nothing comes from another host, and it fits a phone."""

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from selenium import webdriver
from selenium.webdriver.common.by import By

from testing.builders.browser import open_browser
from testing.services.cache import CHECKOUT
from testing.waiting import eventually

# What a browser loads with a page, by tag and attribute; it only follows an `a`.
LOADED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src"}


class References(HTMLParser):
    """What a page loads and where it links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if (value := found.get(LOADED.get(tag, ""))) is not None:
            self.loaded.append(value)
        if tag == "a" and (value := found.get("href")) is not None:
            self.linked.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it: any warning, such as a link to a heading that is not there, is an error."""
    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(CHECKOUT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


def test_every_link_of_the_site_leads_to_a_file(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 50
    for page in pages:
        found = References(page.read_text())
        for reference in (*found.loaded, *found.linked):
            path = unquote(reference.partition("#")[0].partition("?")[0])
            if path and "://" not in path and not path.startswith(("mailto:", "data:")):
                # The page for a missing address is shown at any depth: its links begin at the root.
                target = site / path.lstrip("/") if path.startswith("/") else page.parent / path
                assert target.exists(), f"{page.relative_to(site)}: {reference}"


@pytest.mark.processes
@pytest.mark.parametrize("command", sorted(set(re.findall(r"/mkdocs (build.*)", (CHECKOUT / "Makefile").read_text()))))
@pytest.mark.parametrize("link", ["index.md", "nowhere.md"])
def test_a_broken_link_fails_each_build_of_the_makefile(link: str, command: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"[a page]({link})")
    (tmp_path / "mkdocs.yml").write_text("site_name: a site\nplugins: []\n")
    ran = subprocess.run([sys.executable, "-m", "mkdocs", *command.split()], cwd=tmp_path, capture_output=True)
    assert ran.returncode == (link == "nowhere.md"), ran.stderr.decode()


def test_the_site_loads_nothing_from_another_host(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not [part for part in References(page.read_text()).loaded if "//" in part], page
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)[\s\"']*(https?:)?//", style.read_text()), style


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    """A browser with the width of a phone whose user prefers dark pages."""
    # Without this, a page in a file may not start the worker of the search.
    with open_browser("allow-file-access-from-files") as driver:
        metrics = {"width": 390, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
        yield driver


@pytest.mark.processes
def test_some_pages_fit_a_phone_and_follow_the_scheme_without_an_error(site: Path, browser: webdriver.Chrome) -> None:
    chance = random.Random(int(os.environ.get("VCSREPLICATOR_TEST_SEED", "0")) or None)
    check_pages(browser, [site / "index.html", *chance.sample(sorted(site.glob("docs/*.html")), 2)])


@pytest.mark.processes
@pytest.mark.slow
def test_every_page_fits_a_phone_and_follows_the_scheme_without_an_error(site: Path, browser: webdriver.Chrome) -> None:
    check_pages(browser, sorted(site.glob("docs/*.html")))


def check_pages(browser: webdriver.Chrome, pages: Sequence[Path]) -> None:
    """On a narrow dark screen nothing is cut off, the colours are dark, and the browser complains of nothing."""
    cut_off = (
        "return [...document.querySelectorAll('table')].filter(each => each.scrollWidth > each.clientWidth).length"
    )
    for page in pages:
        browser.get(page.as_uri())
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390, page.name
        assert browser.execute_script(cut_off) == 0, page.name
        assert browser.execute_script("return document.documentElement.dataset.bsTheme") == "dark", page.name
        errors = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        assert errors == [], page.name


@pytest.mark.processes
def test_a_reader_searches_in_the_browser(site: Path, browser: webdriver.Chrome) -> None:
    browser.get(f"{(site / 'docs/start.html').as_uri()}?q=watermark")
    links = "#mkdocs-search-results article a"
    eventually(lambda: browser.find_elements(By.CSS_SELECTOR, links), what="results")
    found = [link.get_attribute("href") for link in browser.find_elements(By.CSS_SELECTOR, links)]
    assert any("docs/serving.html" in str(address) for address in found)
