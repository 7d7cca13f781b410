# SPDX-License-Identifier: GPL-2.0-or-later
"""Options that several verbs share, and the opening of what they name."""

import functools
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import click

from ..config import DEFAULT_FILE, Config, load
from ..log import Log
from ..log.opening import open_log
from ..words.clock import DAY
from ..words.errors import BadConfig
from ..words.secrecy import Exposure, exposures


class Number(click.FloatRange):
    """A number within its limits; `nan` is none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not a number", param, ctx)
        return number


SECONDS = Number(0, 31 * DAY)
HOW_MANY = click.IntRange(1, 1_000_000)


def with_config(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--config FILE`; the verb gets the read `Config` as its first argument."""

    @click.option(
        "-c",
        "--config",
        "file",
        default=DEFAULT_FILE,
        envvar="VCSREPLICATOR_CONFIG",
        show_default=True,
        metavar="FILE",
        help="The services' TOML file.",
    )
    @functools.wraps(function)
    def wrapped(*arguments: Any, file: str, **options: Any) -> Any:
        config: Config = load(file)
        return function(config, *arguments, **options)

    return wrapped


def log_of(config: Config) -> Log:
    """The log that the file names, open; raises BadConfig naming the file if its URL is wrong, Unavailable if it is away."""
    try:
        return open_log(config.log)
    except BadConfig as error:
        raise BadConfig(f"{config.file}: {error}") from error


def with_insecure(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--insecure EXPOSURE`, for verbs that get URLs on the command line; the verb gives the words to `check_exposures`."""
    return click.option(
        "--insecure",
        multiple=True,
        type=click.Choice([exposure.value for exposure in (Exposure.PLAIN_TEXT, Exposure.PASSWORD)]),
        help="Meant though it gives something away; may be repeated.",
    )(function)


def check_exposures(urls: Mapping[str, str | None], insecure: Collection[str]) -> None:
    """Raise BadConfig for what one of these URLs (name on the command line → URL) gives away, unless `insecure` names it."""
    for name, url in urls.items():
        for exposure, found in exposures(url or ""):
            if exposure.value not in insecure:
                raise BadConfig(f"{name}: {found}; if it is meant, add --insecure {exposure.value}")


def destinations(config: Config) -> list[str] | None:
    """The names of the file's destinations; None if it has no notifier's section, as on a mirror's machine it need not."""
    if "notifier" not in config.tables:
        return None
    return [name for name in config.names("notifier") if name != "state"]
