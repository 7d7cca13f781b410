# SPDX-License-Identifier: GPL-2.0-or-later
"""A real browser for tests of pages.

Debian's `chromium-headless-shell` has the engine of `chromium` without its windows, and takes a third of the processor's time for
the same pages.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from selenium import webdriver
from selenium_axe_python.axe import Axe

from testing.services.process import needed

# What Debian's script of that name starts as its child: chromedriver would end the script alone.
PROGRAM = "/usr/lib/chromium/chromium-headless-shell"


@contextmanager
def open_browser(*arguments: str) -> Iterator[webdriver.Chrome]:
    """Have a browser with these arguments, which keeps all that it complains of; it ends with the block."""
    options = webdriver.ChromeOptions()
    options.binary_location = needed(PROGRAM, "chromium-headless-shell")
    for argument in ("no-sandbox", "disable-gpu", "disable-dev-shm-usage", *arguments):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(needed("chromedriver", "chromium-driver"))
    with webdriver.Chrome(options=options, service=service) as browser:
        yield browser


def find_barriers(browser: webdriver.Chrome, *parts: str) -> list[str]:
    """Return what axe-core finds on the page, as it is shown, that bars people who cannot see it or use no mouse.

    Each is the rule, and the elements that break it. Only below the elements of the selectors `parts`, if there are any.
    """
    axe = Axe(browser)
    axe.inject()  # type: ignore[no-untyped-call]
    found = axe.run(list(parts) or None, {"resultTypes": ["violations"]})["violations"]
    return [f"{each['id']}: {[node['target'] for node in each['nodes']]}" for each in found]
