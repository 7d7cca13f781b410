# SPDX-License-Identifier: GPL-2.0-or-later
"""The demo as a picture of a terminal: `python -m testing.recording docs/images/demo.svg` runs it and draws what it printed."""

import html
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# Of a line, in the picture's units.
HEIGHT = 20
STYLE = """
    .ground { fill: #161b22; stroke: #39424e } .bar { fill: #39424e }
    text { font: 14px ui-monospace, monospace; fill: #d7dee7; white-space: pre } .typed { fill: #ffffff; font-weight: 600 }
    .time { fill: #8bbcf0 }
    @keyframes show { from { opacity: 0.6 } to { opacity: 1 } }
    @media (prefers-reduced-motion: no-preference) { text { animation: show 0.1s both } }
"""


def draw(lines: Sequence[str]) -> str:
    """Draw the lines in a terminal, the first as typed; they appear one after the other where the reader allows motion."""
    texts = []
    for number, line in enumerate(lines):
        is_step = re.match(r" +[\d.]+ ms", line)
        kind = "time" if is_step else "said"
        if number == 0:
            kind = "typed"
        place = f'x="20" y="{56 + number * HEIGHT}" style="animation-delay: {0.4 + 0.15 * number:.1f}s"'
        texts.append(f'  <text class="{kind}" {place}>{html.escape(line)}</text>')
    height = 56 + len(lines) * HEIGHT
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 {height}" role="img" aria-labelledby="title">',
            '  <title id="title">The demo in a terminal</title>',
            f"  <style>{STYLE}  </style>",
            f'  <rect class="ground" x="0.5" y="0.5" width="639" height="{height - 1}" rx="8"/>',
            '  <circle class="bar" cx="22" cy="20" r="6"/><circle class="bar" cx="42" cy="20" r="6"/>'
            '<circle class="bar" cx="62" cy="20" r="6"/>',
            *texts,
            "</svg>\n",
        ]
    )


def chosen(output: str) -> list[str]:
    """Return the demo's start and its second push, without the notice."""
    start, _, rest = output.partition("\n")
    push = re.search(r"^push of 3 .*?(?=\n\nThe notice)", rest, re.MULTILINE | re.DOTALL)
    assert push, output
    lines = [line.rstrip() for line in push[0].splitlines()]
    return ["$ make demo", re.sub(r" in /.*", "", start), "", *lines]


def main() -> None:
    """Run the demo and write the picture to the file that the first argument names."""
    demo = [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", "demo"]
    output = subprocess.run(demo, capture_output=True, text=True, check=True).stdout
    Path(sys.argv[1]).write_text(draw(chosen(output)), encoding="utf-8")


if __name__ == "__main__":
    main()
