# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator status`: progress, and what an operator must do."""

import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import NoReturn

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..config import Config
from ..status import AGGREGATOR, DESTINATION, Picture
from ..status.findings import DESTINATION_KEY, RELAY_KEY, as_data, findings
from ..status.follower import Follower, look_at_destinations
from ..words.errors import Unavailable, visible
from .display import console, is_terminal, print_json, table
from .options import destinations, log_of, relay_of, with_config, with_json
from .progress import metered_log

# Repositories whose notices wait, at most.
SHOWN = 15


@click.command()
@click.option("--watch", is_flag=True, help="Update the display every second until interrupted.")
@with_json
@with_config
def command(config: Config, watch: bool, as_json: bool) -> None:
    """Show mirrors, destinations, waiting notices, and what an operator must do."""
    wanted, relay = destinations(config), relay_of(config)
    source = relay.source if relay else None
    with (log_of if watch else metered_log)(config) as log, closing(Follower(log)) as follower:

        def read_all() -> tuple[Picture, float]:
            now = follower.present()
            look_at_destinations(log, follower.picture)
            return follower.picture, now

        if watch and not as_json:
            _watch(lambda: _view(*read_all(), wanted, source))
        picture, now = read_all()
        if as_json:
            print_json(as_data(picture, now, destinations=wanted, relay=source))
        else:
            console().print(_view(picture, now, wanted, source))


def _watch(view: Callable[[], Group]) -> NoReturn:
    if not is_terminal(sys.stdout):
        _write_repeatedly(view)
    with Live(view(), console=console(), refresh_per_second=2) as live:
        while True:
            time.sleep(1)
            try:
                live.update(view(), refresh=True)
            except Unavailable as error:
                text = Text(f"the log cannot be read, trying again: {visible(str(error))}", "red")
                live.update(text, refresh=True)


def _write_repeatedly(view: Callable[[], Group]) -> NoReturn:
    """Write each view as lines, for a file or a pipe."""
    output = console()
    while True:
        try:
            output.print(view(), Text(), end="")
        except Unavailable as error:
            output.print(Text(f"the log cannot be read, trying again: {visible(str(error))}"))
        output.file.flush()
        time.sleep(1)


def _view(picture: Picture, now: float, wanted: list[str] | None, relay: str | None) -> Group:
    waiting = picture.waiting()
    beat = picture.aggregator
    seen = "not seen"
    if beat:
        seen = f"seen {_format_age(picture.seen(AGGREGATOR), now)}, roster version {beat.roster}"
    numbers = [
        ("repositories", str(len(picture.states))),
        ("events", str(sum(state.base + state.seq for state in picture.states.values()))),
        ("announced", str(sum(state.base + state.noticed for state in picture.states.values()))),
        ("waiting for a notice", f"{sum(s.seq - s.noticed for s in waiting)} in {len(waiting)} repositories"),
        ("aggregator", seen),
        ("errors", str(picture.errors)),
    ]
    parts: list[Table | Text] = [table(("", ""), numbers), Text(), _mirror_table(picture, now)]
    parts += [Text(), _service_table(picture, now, relay)]
    if waiting:
        parts += [Text(), _waiting_table(picture)]
    for finding in findings(picture, now, destinations=wanted, relay=relay):
        word, colour = ("critical", "red") if finding.level == 2 else ("warning", "yellow")
        parts.append(Text(f"{word}: {visible(finding.text)}", colour))
    return Group(*parts)


def _mirror_table(picture: Picture, now: float) -> Table:
    rows = []
    known = {mirror.name: mirror.state.value for mirror in picture.roster.mirrors} if picture.roster else {}
    carried = Counter(mirror for mirror, _ in picture.acks)
    detached = Counter(ack.mirror for ack in picture.detached())
    for name in sorted(known | dict.fromkeys(picture.beats, "")):
        rows.append(
            (
                name,
                known.get(name, "not in the roster"),
                str(carried[name]),
                str(picture.behind(name)),
                str(detached[name]),
                _format_age(picture.seen(name), now) if name in picture.heard else "never",
            )
        )
    return table(("mirror", "state", "repositories", "behind", "detached", "seen"), rows)


def _service_table(picture: Picture, now: float, relay: str | None) -> Table:
    """Make the table of relays and destinations.

    Each further trouble of a service, as of a destination's part, has a line of its own.
    """
    known = {DESTINATION_KEY + group.removeprefix(DESTINATION) for group in picture.lags}
    rows = []
    for name in sorted({*picture.reports, *known, *([RELAY_KEY + relay] if relay else [])}, reverse=True):
        report, group = picture.reports.get(name), DESTINATION + name.removeprefix(DESTINATION_KEY)
        lag = str(picture.lags[group]) if group in picture.lags else ""
        oldest = _format_age(picture.oldest[group], now) if group in picture.oldest else ""
        seen = _format_age(picture.seen(name), now) if report else "never"
        troubles = [trouble.text for trouble in report.troubles] if report else []
        rows.append((name, lag, oldest, seen, troubles[0] if troubles else ""))
        rows += [("", "", "", "", text) for text in troubles[1:]]
    return table(("service", "behind", "oldest", "seen", "trouble"), rows)


def _waiting_table(picture: Picture) -> Table:
    rows = []
    for state in picture.waiting()[:SHOWN]:
        slow = picture.holding(state)
        rows.append((state.path, str(state.seq), str(state.released), str(state.noticed), ", ".join(slow)))
    return table(("waiting for a notice", "event", "released", "noticed", "waits for"), rows)


def _format_age(then: float, now: float) -> str:
    seconds = max(0.0, now - then)
    return f"{seconds:.0f} s ago" if seconds < 120 else f"{seconds / 60:.0f} min ago"
