# SPDX-License-Identifier: GPL-2.0-or-later
"""The pages in a real browser, at the width of a desk and of a phone, light and dark; they keep to their own policy.

With VCSREPLICATOR_TEST_SCREENSHOTS=FOLDER each page is kept there as a picture, to be looked at.
"""

import base64
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from hgext.vcsreplicator.dashboard.server import run
from hgext.vcsreplicator.dashboard.settings import DashboardSettings, ReaderRole
from testing.waiting import eventually
from tests.dashboard.conftest import SECRET, Installation, fill

pytestmark = pytest.mark.processes

WIDTHS = {"desk": 1280, "phone": 390}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@contextmanager
def serving(installation: Installation, role: ReaderRole = ReaderRole.READER) -> Iterator[str]:
    """The URL of a server whose readers have this role."""
    port = free_port()
    made = DashboardSettings(listen=f"127.0.0.1:{port}", anonymous=role)
    stop, ready, errors = threading.Event(), threading.Event(), []

    def serve() -> None:
        try:
            run(made, installation.sources, address=("127.0.0.1", port), stop=stop, ready=ready.set)
        except BaseException as error:
            errors.append(error)
            ready.set()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert ready.wait(30)
        assert not errors
        yield f"http://127.0.0.1:{port}"
    finally:
        stop.set()
        thread.join(30)
    assert not thread.is_alive()
    assert not errors


@pytest.fixture(scope="module")
def installation() -> Installation:
    return fill()


@pytest.fixture(scope="module")
def address(installation: Installation) -> Iterator[str]:
    with serving(installation) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    yield driver
    driver.quit()


def show(browser: webdriver.Chrome, url: str, *, width: int = 1280, scheme: str = "light") -> None:
    """Load a page once the server has read the log."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    )
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def is_read() -> bool:
        browser.get(url)
        return "Not read yet" not in browser.title

    eventually(is_read)


def keep(browser: webdriver.Chrome, name: str) -> None:
    folder = os.environ.get("VCSREPLICATOR_TEST_SCREENSHOTS")
    if folder:
        height = browser.execute_script("return document.documentElement.scrollHeight")
        clip = {"x": 0, "y": 0, "width": browser.execute_script("return innerWidth"), "height": height, "scale": 1}
        options = {"captureBeyondViewport": True, "clip": clip}
        shot = browser.execute_cdp_cmd("Page.captureScreenshot", options)["data"]
        (Path(folder) / f"{name}.png").write_bytes(base64.b64decode(shot))


def pages_of(installation: Installation) -> dict[str, str]:
    firefox, tools = (installation.chains[path].repository for path in ("public/firefox", "public/tools"))
    return {
        "overview": "/",
        "repositories": "/repositories",
        "repository": f"/repository/{firefox}",
        "timeline": f"/repository/{tools}/event/2",
        "waiting": f"/repository/{installation.chains[SECRET].repository}/event/4",
        "pushes": "/pushes",
        "missing": "/repository/0",
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_each_page_fits_its_width_and_keeps_to_the_policy(
    browser: webdriver.Chrome, address: str, installation: Installation, width: str, scheme: str
) -> None:
    for name, path in pages_of(installation).items():
        show(browser, address + path, width=WIDTHS[width], scheme=scheme)
        keep(browser, f"{name}-{width}-{scheme}")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= WIDTHS[width], name
        background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        is_dark = sum(map(int, background.removeprefix("rgb(").removesuffix(")").split(", "))) < 200
        assert is_dark == (scheme == "dark"), "our style sheet is not in use"
        complaints = [entry["message"] for entry in browser.get_log("browser")]
        assert [text for text in complaints if "status of 404" not in text] == []


def test_the_keyboard_reaches_the_content_first_and_then_every_link(browser: webdriver.Chrome, address: str) -> None:
    show(browser, address)
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    assert browser.switch_to.active_element.get_attribute("class") == "skip"
    browser.switch_to.active_element.send_keys(Keys.TAB)
    assert browser.switch_to.active_element.text == "Overview"


def test_a_search_works_without_a_script(browser: webdriver.Chrome, address: str) -> None:
    show(browser, f"{address}/repositories")
    browser.find_element(By.NAME, "q").send_keys("payroll", Keys.ENTER)
    eventually(lambda: "q=payroll" in browser.current_url)
    assert [row.text for row in browser.find_elements(By.CSS_SELECTOR, "tbody th")] == [SECRET]


def test_a_page_that_is_open_shows_a_new_push(browser: webdriver.Chrome) -> None:
    installation = fill()
    with serving(installation) as address:
        show(browser, f"{address}/pushes")
        before = browser.find_elements(By.CSS_SELECTOR, "tbody tr")
        eventually(lambda: browser.execute_script("return performance.getEntriesByType('resource').length >= 2"))

        def is_shown() -> bool:
            rows = browser.execute_script("return document.querySelectorAll('tbody tr').length")
            return bool(rows > len(before))

        installation.push("public/tools")
        eventually(is_shown, 30)
        browser.get("about:blank")
