# SPDX-License-Identifier: GPL-2.0-or-later
"""The pages in a real browser, at the width of a desk and of a phone, light and dark; they keep to their own policy.

With VCSREPLICATOR_TEST_SCREENSHOTS=FOLDER each page is kept there as a picture, to be looked at.
"""

import base64
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from hgext.vcsreplicator.dashboard.acts import ActJournal, ActOutcome, read_act
from hgext.vcsreplicator.dashboard.server import run
from hgext.vcsreplicator.dashboard.settings import DashboardRole, DashboardSettings
from hgext.vcsreplicator.demo.ports import free_port
from hgext.vcsreplicator.log import ACKS, STATE
from hgext.vcsreplicator.words.records import AggregatorHeartbeat
from testing.builders.browser import find_barriers, open_browser
from testing.waiting import eventually
from tests.dashboard.conftest import AS_OPERATOR, SECRET, Installation, fill, fill_notifier, users_file

pytestmark = pytest.mark.processes

WIDTHS = {"desk": 1280, "phone": 390}

# Pages on which operators act.
FORMS = ("deliveries", "roster", "acts", "repository")

# A name that the browser takes for this machine.
HOST = "status.example"

ACTS = (
    ({"kind": "deactivate", "target": "beta"}, ActOutcome.DONE, "roster version 8"),
    ({"kind": "redeliver", "target": "hooks", "delivery": "3"}, ActOutcome.REFUSED, "there is no delivery 3"),
    (
        {"kind": "replay", "target": "hooks", "repository": "public/firefox", "since": "12"},
        ActOutcome.ASKED,
        "request 4 is recorded",
    ),
    ({"kind": "skip", "target": "pulse-v2"}, None, ""),
)


@contextmanager
def serving(
    installation: Installation,
    role: DashboardRole = DashboardRole.READER,
    *,
    folder: Path | None = None,
    port: int | None = None,
) -> Iterator[str]:
    """The URL of a server whose anonymous readers have this role; with a folder it has operators too."""
    port = port or free_port()
    made = DashboardSettings(
        listen=f"127.0.0.1:{port}",
        anonymous=role,
        users=users_file(folder) if folder else None,
        acts=str(folder / "acts.db") if folder else None,
        hosts=(HOST,),
    )
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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dashboard")


@pytest.fixture(scope="module")
def address(installation: Installation, folder: Path) -> Iterator[str]:
    """The URL of a server on the notifier's machine, where operators have acted."""
    installation.notifier = fill_notifier(folder)
    with serving(installation, folder=folder) as address:
        journal = ActJournal(str(folder / "acts.db"), installation.sources.log)
        for number, (fields, outcome, result) in enumerate(ACTS):
            act = read_act(
                {"reason": "its disk is full", "confirm": "yes", **fields}, who="olga", at=1_700_000_000.0 + number
            )
            begun, _ = journal.begin(act, str(number))
            if outcome is not None:
                journal.end(begun, outcome, result)
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    with open_browser(f"host-resolver-rules=MAP {HOST} 127.0.0.1") as browser:
        yield browser


def show(browser: webdriver.Chrome, url: str, *, width: int = 1280, scheme: str = "light") -> None:
    """Load a page once the server has read the log."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    )
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def is_read() -> bool:
        browser.get(url)
        is_there = "Not read yet" not in browser.title
        if not is_there:
            browser.get_log("browser")  # which complains of the status
        return is_there

    eventually(is_read)


@contextmanager
def signed_in(browser: webdriver.Chrome) -> Iterator[None]:
    """Send the operator's token with each request, as a browser does after it asked for it."""
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.setExtraHTTPHeaders", {"headers": AS_OPERATOR})
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Network.setExtraHTTPHeaders", {"headers": {}})


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
        "mirror": "/mirror/beta",
        "repository": f"/repository/{firefox}",
        "timeline": f"/repository/{tools}/event/2",
        "waiting": f"/repository/{installation.chains[SECRET].repository}/event/4",
        "pushes": "/pushes",
        "graphs": "/graphs?span=day",
        "deliveries": "/deliveries",
        "destination": "/destination/hooks",
        "roster": "/roster",
        "acts": "/acts",
        "missing": "/repository/0",
    }


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        ("phone", "dark"),
        ("desk", "light"),
        pytest.param("phone", "light", marks=pytest.mark.slow),
        pytest.param("desk", "dark", marks=pytest.mark.slow),
    ],
)
def test_each_page_fits_its_width_and_keeps_to_the_policy(
    browser: webdriver.Chrome, address: str, installation: Installation, width: str, scheme: str
) -> None:
    for name, path in pages_of(installation).items():
        show(browser, address + path, width=WIDTHS[width], scheme=scheme)
        check_page(browser, name, width, scheme)
    with signed_in(browser):
        for name in FORMS:
            show(browser, address + pages_of(installation)[name], width=WIDTHS[width], scheme=scheme)
            check_page(browser, f"{name}-operator", width, scheme)
            for each in browser.find_elements(By.CSS_SELECTOR, ".acts details")[:3]:
                each.find_element(By.TAG_NAME, "summary").click()
            check_page(browser, f"{name}-open", width, scheme)


@pytest.mark.sample(1, keep=["few"])
@pytest.mark.parametrize(
    ("width", "scheme", "names", "forms"),
    [
        pytest.param("phone", "dark", ("overview",), ("roster",), id="few"),
        *(
            pytest.param(width, scheme, None, FORMS, id=f"all-{width}-{scheme}")
            for width in WIDTHS
            for scheme in ("light", "dark")
        ),
    ],
)
def test_no_page_bars_those_who_cannot_see_it(
    browser: webdriver.Chrome,
    address: str,
    installation: Installation,
    width: str,
    scheme: str,
    names: tuple[str, ...] | None,
    forms: tuple[str, ...],
) -> None:
    """So says axe-core, on all pages as they are first shown, and on those for operators with all forms open."""
    pages = pages_of(installation)
    found = {}
    for name in names or pages:
        show(browser, address + pages[name], width=WIDTHS[width], scheme=scheme)
        found[name] = find_barriers(browser)
    with signed_in(browser):
        for name in forms:
            show(browser, address + pages[name], width=WIDTHS[width], scheme=scheme)
            browser.execute_script("document.querySelectorAll('details').forEach(each => each.open = true)")
            found[f"{name} with forms"] = find_barriers(browser)
    assert {name: barriers for name, barriers in found.items() if barriers} == {}


def check_page(browser: webdriver.Chrome, name: str, width: str, scheme: str) -> None:
    """The page fits, has our colours, and the browser complains of nothing."""
    keep(browser, f"{name}-{width}-{scheme}")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= WIDTHS[width], name
    background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    is_dark = sum(map(int, background.removeprefix("rgb(").removesuffix(")").split(", "))) < 200
    assert is_dark == (scheme == "dark"), "our style sheet is not in use"
    complaints = [entry["message"] for entry in browser.get_log("browser")]
    assert [text for text in complaints if "status of 404" not in text] == []


def test_a_command_is_seen_whole_on_a_phone(browser: webdriver.Chrome) -> None:
    installation = fill()
    chain = installation.push(f"public/{'folder/' * 9}name")
    installation.write(ACKS, f"beta/{chain.repository}", replace(chain.ack("beta", 1), detached="locked"))
    with serving(installation) as address:
        show(browser, address, width=WIDTHS["phone"])
        commands = browser.find_elements(By.CSS_SELECTOR, ".command")
        hidden = [each.text for each in commands if each.get_property("scrollWidth") > each.get_property("clientWidth")]
        browser.get("about:blank")
    assert len(commands) >= 2
    assert hidden == []


def test_a_service_with_a_long_trouble_keeps_its_name_whole(browser: webdriver.Chrome) -> None:
    installation, alarm = fill(), "the log has another history; " * 20
    beat = AggregatorHeartbeat(time=installation.clock.now(), roster=1, held=0, alarms=(alarm,))
    installation.write(STATE, "aggregator", beat)
    with serving(installation) as address:
        show(browser, address)
        name = browser.find_element(
            By.XPATH, "//h2[@id='services']/following::th[normalize-space()='relay hg.example']"
        )
        script = "const text = new Range(); text.selectNodeContents(arguments[0]); return text.getClientRects().length"
        lines = browser.execute_script(script, name)
        browser.get("about:blank")
    assert lines == 1


def test_long_names_break_no_word_of_a_state(browser: webdriver.Chrome) -> None:
    mirrors = tuple(f"mirror{number}.datacentre-east.example.org" for number in range(2))
    installation = Installation(mirrors)
    chain = installation.push(f"public/{'a-team-with-a-very-long-name/' * 4}a-repository-with-one-too")
    installation.write(ACKS, f"{mirrors[1]}/{chain.repository}", replace(chain.ack(mirrors[1], 1), detached="locked"))
    script = "const text = new Range(); text.selectNodeContents(arguments[0]); return text.getClientRects().length"
    with serving(installation) as address:
        for page, expected in (("/", {"current", "has detached"}), ("/repositories", {"detached"})):
            show(browser, address + page)
            states = browser.find_elements(By.CSS_SELECTOR, "td[data-label=State]")
            assert {each.text for each in states} == expected
            # An element within has a rectangle of its own.
            texts = [each.find_elements(By.TAG_NAME, "strong") or [each] for each in states]
            assert [browser.execute_script(script, text) for [text] in texts] == [1] * len(states), page
        browser.get("about:blank")


def test_a_graph_of_a_phone_has_its_begin_left_and_its_end_right(browser: webdriver.Chrome, address: str) -> None:
    show(browser, f"{address}/graphs?span=day", width=WIDTHS["phone"])
    begin, _, end = (each.rect for each in browser.find_elements(By.CSS_SELECTOR, ".graph:first-of-type span")[:3])
    assert begin["y"] == end["y"]
    assert begin["x"] + begin["width"] < end["x"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("width", WIDTHS)
def test_what_a_guest_and_a_machine_without_a_notifier_show_fits_too(
    browser: webdriver.Chrome, tmp_path: Path, width: str
) -> None:
    with serving(fill(), DashboardRole.GUEST, folder=tmp_path) as address:
        show(browser, address, width=WIDTHS[width])
        check_page(browser, "overview-guest", width, "light")
        assert browser.find_element(By.LINK_TEXT, "Sign in").is_displayed()
        with signed_in(browser):
            show(browser, f"{address}/deliveries", width=WIDTHS[width])
            check_page(browser, "deliveries-elsewhere", width, "light")


@pytest.mark.sample(2)
@pytest.mark.parametrize(("host", "with_scripts"), [("127.0.0.1", True), ("127.0.0.1", False), (HOST, True)])
def test_an_operator_acts_with_a_form(
    browser: webdriver.Chrome, tmp_path: Path, host: str, *, with_scripts: bool
) -> None:
    """The browser itself says where the form comes from, by `Origin` alone without TLS on another host than its own."""
    installation = fill()
    with serving(installation, folder=tmp_path) as address, signed_in(browser):
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not with_scripts})
        try:
            show(browser, f"{address.replace('127.0.0.1', host)}/roster")
            details = browser.find_elements(By.CSS_SELECTOR, ".acts details")[1]
            details.find_element(By.TAG_NAME, "summary").click()
            button = details.find_element(By.TAG_NAME, "button")
            button.click()  # the browser asks for the reason first
            assert not installation.acts
            details.find_element(By.NAME, "reason").send_keys("its disk is full")
            details.find_element(By.NAME, "confirm").click()
            button.click()
            eventually(lambda: browser.current_url.endswith("/acts#act-1"))
            assert "deactivate beta" in browser.find_element(By.ID, "act-1").text
        finally:
            browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    [(act, number)] = installation.acts
    assert (act.who, act.target, act.reason, number) == ("olga", "beta", "its disk is full", 1)


def test_a_form_that_a_person_fills_in_is_not_taken_away(browser: webdriver.Chrome, tmp_path: Path) -> None:
    """The page's delay of two seconds is taken out, and what it fetches is counted."""
    installation = fill()
    repository = installation.chains["public/tools"].repository
    watched = """
        window.heard = window.asked = 0;
        window.setTimeout = then => queueMicrotask(() => { then(); window.heard += 1; });
        const ask = window.fetch;
        window.fetch = address => {
            window.asked += 1;
            if (window.opensMeanwhile) document.querySelector(".acts summary").click();
            return ask(address);
        };
    """

    def announce(count: str) -> bool:
        installation.push("public/tools")
        return bool(browser.execute_script(f"return window.{count}"))

    with serving(installation, folder=tmp_path) as address, signed_in(browser):
        show(browser, f"{address}/repository/{repository}")
        browser.execute_script(watched)
        browser.find_element(By.CSS_SELECTOR, ".acts summary").click()
        browser.find_element(By.NAME, "reason").send_keys("because")
        browser.execute_script("document.activeElement.blur()")
        eventually(lambda: announce("heard"), every=0.5)
        assert browser.execute_script("return window.asked") == 0
        assert browser.find_element(By.NAME, "reason").get_attribute("value") == "because"
        browser.find_element(By.CSS_SELECTOR, ".acts summary").click()
        browser.execute_script("document.activeElement.blur()")
        eventually(lambda: announce("asked"), every=0.5)
        browser.execute_script("window.opensMeanwhile = true; window.asked = window.heard = 0")
        eventually(lambda: announce("asked"), every=0.5)
        heard = browser.execute_script("return window.heard")
        eventually(lambda: announce("heard") and browser.execute_script("return window.heard") > heard + 1, every=0.5)
        assert browser.find_element(By.CSS_SELECTOR, ".acts details").get_attribute("open")
        assert browser.execute_script("return window.asked") == 1
        browser.get("about:blank")


def test_the_keyboard_reaches_the_content_first_and_then_every_link(browser: webdriver.Chrome, address: str) -> None:
    show(browser, address)
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    assert browser.switch_to.active_element.get_attribute("class") == "skip"
    browser.switch_to.active_element.send_keys(Keys.TAB)
    assert browser.switch_to.active_element.text == "Overview"


@pytest.mark.sample(1, keep=["roster"])
@pytest.mark.parametrize("page", [page for page in FORMS if page != "acts"])
def test_the_keyboard_alone_reaches_every_control_of_the_forms(
    browser: webdriver.Chrome, address: str, installation: Installation, page: str
) -> None:
    with signed_in(browser):
        show(browser, address + pages_of(installation)[page])
        browser.execute_script("document.querySelectorAll('details').forEach(each => each.open = true)")
        controls = browser.find_elements(
            By.CSS_SELECTOR, ".acts :is(summary, input:not([type=hidden]), select, button)"
        )
        reached = set()
        focus = browser.find_element(By.TAG_NAME, "body")
        while focus not in reached and len(reached) < 1000:
            reached.add(focus)
            focus.send_keys(Keys.TAB)
            focus = browser.switch_to.active_element
    assert len(controls) > 5
    assert [each.get_attribute("outerHTML") for each in controls if each not in reached] == []


def test_an_operator_acts_with_the_keyboard_alone(browser: webdriver.Chrome, tmp_path: Path) -> None:
    installation = fill()
    with serving(installation, folder=tmp_path) as address, signed_in(browser):
        show(browser, f"{address}/roster")
        browser.execute_script(
            "document.querySelectorAll('.acts summary')[1].focus()"
        )  # others may be reached before it
        for keys in (Keys.ENTER, Keys.TAB, "its disk is full", Keys.TAB, Keys.SPACE, Keys.TAB, Keys.ENTER):
            browser.switch_to.active_element.send_keys(keys)
        eventually(lambda: browser.current_url.endswith("/acts#act-1"))
    [(act, _)] = installation.acts
    assert (act.who, act.target, act.reason) == ("olga", "beta", "its disk is full")


def test_a_slash_leads_to_the_search_and_enter_to_the_push(
    browser: webdriver.Chrome, address: str, installation: Installation
) -> None:
    show(browser, f"{address}/roster")
    browser.find_element(By.TAG_NAME, "body").send_keys("/")
    field = browser.switch_to.active_element
    assert field.get_attribute("placeholder") == "changeset, user, bookmark or repository"
    field.send_keys("payroll/", Keys.ENTER)
    eventually(lambda: "/pushes?q=payroll%2F" in browser.current_url)
    assert browser.find_element(By.CSS_SELECTOR, "header [name=q]").get_attribute("value") == "payroll/"


def test_a_search_works_without_a_script(browser: webdriver.Chrome, address: str) -> None:
    show(browser, f"{address}/repositories")
    browser.find_element(By.CSS_SELECTOR, "main [name=q]").send_keys("payroll", Keys.ENTER)
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


def read_main(browser: webdriver.Chrome) -> str:
    return str(browser.execute_script("return document.querySelector('main').innerText"))


def test_a_page_that_is_open_shows_a_new_finding_though_no_push_comes(browser: webdriver.Chrome) -> None:
    """The page's timer runs when the test says so."""
    installation = fill()
    script = {"source": "window.setInterval = then => { window.tick = then; };"}
    added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", script)
    try:
        with serving(installation) as address:
            show(browser, address)
            assert "the aggregator has sent no heartbeat" not in read_main(browser)
            installation.clock.advance(100.0)

            def is_shown() -> bool:
                browser.execute_script("window.tick()")
                return "the aggregator has sent no heartbeat" in read_main(browser)

            eventually(is_shown, every=0.5)
            foreign = "window.fetch = async () => new Response('<main>Log in</main>', {status: 200}); window.tick()"
            browser.execute_script(foreign)
            eventually(lambda: "answers with status 200 and not with this page" in browser.page_source)
            browser.execute_script("getSelection().selectAllChildren(document.querySelector('main'))")
            browser.execute_script("window.tick()")
            said = browser.find_element(By.CSS_SELECTOR, "[role=status]").text
            assert "is not renewed while a part of it is in use" in said
            browser.get("about:blank")
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


@pytest.mark.sample(1)
@pytest.mark.parametrize("width", WIDTHS)
def test_an_open_page_says_that_the_dashboard_does_not_answer(browser: webdriver.Chrome, width: str) -> None:
    installation, port = fill(), free_port()

    def read_status() -> str:
        return browser.find_element(By.CSS_SELECTOR, "[role=status]").text

    with serving(installation, port=port) as address:
        show(browser, address, width=WIDTHS[width])
        assert read_status() == ""
    said = eventually(read_status)
    assert browser.title == "no answer: Overview · vcsreplicator"
    assert browser.find_element(By.CSS_SELECTOR, "link[rel=icon]").get_attribute("href").endswith("icon-critical.svg")
    assert "The dashboard does not answer" in said
    assert browser.find_element(By.CSS_SELECTOR, "footer time").text in said
    keep(browser, f"overview-away-{width}")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= WIDTHS[width]
    with serving(installation, port=port):
        eventually(lambda: read_status() == "")
        assert browser.title == "warning: Overview · vcsreplicator"
        browser.get("about:blank")
    browser.get_log("browser")  # it complains of the time without an answer
