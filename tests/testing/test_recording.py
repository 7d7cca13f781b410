# SPDX-License-Identifier: GPL-2.0-or-later
"""The picture of the demo."""

import html
import re
import xml.dom.minidom

from testing.recording import chosen, draw
from testing.services.cache import CHECKOUT

OUTPUT = """8 services are ready after 1.6 s in /tmp/demo
created hello on the master; the mirrors serve it

push of 1 changeset
    0.0 ms  committed on the master

push of 3 changesets
  remote: added <3> changesets
    0.0 ms  committed on the master

The notice:
{}
"""


def test_a_picture_has_the_command_and_the_lines_of_the_second_push() -> None:
    picture = draw(chosen(OUTPUT))
    xml.dom.minidom.parseString(picture)
    texts = [html.unescape(text) for text in re.findall(r"<text [^>]*>(.*)</text>", picture)]
    assert texts[:3] == ["$ make demo", "8 services are ready after 1.6 s", ""]
    assert texts[3:] == [
        "push of 3 changesets",
        "  remote: added <3> changesets",
        "    0.0 ms  committed on the master",
    ]


def test_the_picture_in_the_readme_is_what_the_module_draws() -> None:
    kept = (CHECKOUT / "docs/images/demo.svg").read_text()
    assert kept == draw([html.unescape(text) for text in re.findall(r"<text [^>]*>(.*)</text>", kept)])
