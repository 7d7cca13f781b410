# SPDX-License-Identifier: GPL-2.0-or-later
"""The page in a real browser, under a Content-Security-Policy that allows next to nothing."""

import shutil
import subprocess

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By

from testing.waiting import eventually
from tests.pushlog.conftest import HG, environment

POLICY = "default-src 'none'; style-src 'self'; img-src 'self'; script-src 'self'; form-action 'self'"


@pytest.fixture(scope="module")
def address(root, tmp_path_factory):
    """The URL of a server of the golden repository with that policy."""
    folder = tmp_path_factory.mktemp("browser")
    (folder / "hgrc").write_text(f"[extensions]\npushlog =\n[web]\ncsp = {POLICY}\n")
    command = [HG, "serve", "-R", str(root / "golden"), "-a", "127.0.0.1", "-p", "0", "--print-url"]
    process = subprocess.Popen(
        command, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    with process.stdout:
        yield "http://127.0.0.1:" + process.stdout.readline().decode().rstrip("/\n").rpartition(":")[2]
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1280,900",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    yield driver
    driver.quit()


def texts(browser, selector):
    """What the page shows there; nothing while one page gives way to the next."""
    try:
        return [element.text for element in browser.find_elements(By.CSS_SELECTOR, selector)]
    except StaleElementReferenceException:
        return []


@pytest.mark.parametrize("style", ["paper", "gitweb"])
def test_the_page_shows_pushes_and_breaks_no_rule(browser, address, style):
    browser.get(f"{address}/pushloghtml?style={style}")
    complaints = [entry for entry in browser.get_log("browser") if "favicon" not in entry["message"]]
    assert complaints == []
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
