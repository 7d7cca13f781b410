# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator listen`: receives messages from an exchange."""

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.parse
from typing import TYPE_CHECKING, Any

import click

from ..service import configure_logging, stop_on_signals
from ..words.errors import BadConfig, Refused
from .options import check_exposures, with_insecure

if TYPE_CHECKING:
    from notifier.destinations.pulse.listener import ReceivedMessage

# The variable with the broker's password, which a command does not get.
_PASSWORD = "VCSREPLICATOR_LISTEN_PASSWORD"
# Characters that no variable of the environment can hold.
_NO_VARIABLE = re.compile("[\0\ud800-\udfff]")


@click.command()
@click.argument("url")
@click.argument("exchange")
@click.option("--queue", metavar="NAME", help="queue/<clientId>/<name>  [default: from user and host]")
@click.option(
    "--key",
    default="#",
    show_default=True,
    metavar="PATTERN",
    help="Routing keys: * is one word, # any number.",
)
@click.option("--run", metavar="COMMAND", help="Run for each message; the body is on its standard input.")
@click.option("--durable/--auto-delete", default=False, help="Keep the queue after this command ends.  [default: no]")
@click.option("--prefetch", default=10, show_default=True, help="Messages received ahead.")
@click.option("--max-length", default=10_000, show_default=True, help="Messages in the queue; the oldest are dropped.")
@click.option(
    "--max-message", default=16 * 1024 * 1024, show_default=True, help="Bytes; a larger message ends the command."
)
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after N messages.")
@click.option("--whole", is_flag=True, help="Print properties and headers too.")
@with_insecure
def command(
    url: str, exchange: str, run: str | None, count: int | None, whole: bool, insecure: tuple[str, ...], **options: Any
) -> None:
    """Print each message of EXCHANGE as a line of JSON, or run a command for it.

    URL is amqps://USER@HOST/VHOST, with the password in VCSREPLICATOR_LISTEN_PASSWORD. On this machine amqp:// and a
    password in the URL are allowed too.

    A message is acknowledged when it is printed, or when its command exits with 0; otherwise the broker sends it again. A
    message that is not JSON is printed as a string.
    """
    from notifier.destinations.pulse.listener import ReceivedMessage, listen

    check_exposures({"URL": url}, insecure)
    configure_logging("listen")
    words = _split_command(run)
    stop = stop_on_signals()

    def show(arrival: ReceivedMessage) -> bool:
        # Any client may publish: bodies that are not JSON, or too deep, stay text; Python reads NaN, too.
        try:
            line = _write_line(arrival, json.loads(arrival.text), whole=whole)
        except (ValueError, RecursionError):
            line = _write_line(arrival, arrival.text, whole=whole)
        click.echo(line)
        sys.stdout.flush()
        return True

    def execute(arrival: ReceivedMessage) -> bool:
        environment = {
            **{name: value for name, value in os.environ.items() if name != _PASSWORD},
            "ROUTING_KEY": _replace_unfit(arrival.routing_key),
            "MESSAGE_ID": _replace_unfit(str(arrival.properties.get("message_id") or "")),
        }
        try:
            ended = subprocess.run(words, input=arrival.text.encode(), env=environment, check=False)
        except OSError as error:
            raise Refused(f"--run: {words[0]} cannot be run: {error.strerror}") from error
        return ended.returncode == 0

    listen(_make_settings(url, exchange, **options), execute if words else show, stop=stop, limit=count)


def _write_line(arrival: "ReceivedMessage", content: Any, *, whole: bool) -> str:
    """Return the printed line of a message.

    Raises RecursionError if it is too deep, ValueError for a number that JSON has not.
    """
    if whole:
        content = {
            "body": content,
            "routing_key": arrival.routing_key,
            "id": arrival.properties.get("message_id"),
            "type": arrival.properties.get("type"),
            "headers": json.loads(json.dumps(dict(arrival.headers), default=str), parse_constant=str),
        }
    return json.dumps(content, sort_keys=True, default=str, allow_nan=False)


def _replace_unfit(text: str) -> str:
    """Return the text with U+FFFD for characters that no variable can hold."""
    return _NO_VARIABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def _split_command(run: str | None) -> list[str]:
    try:
        words = shlex.split(run or "")
    except ValueError as error:
        raise Refused(f"--run: {error}") from error
    if run is not None and not words:
        raise Refused("--run: expected a command")
    return words


def _make_settings(url: str, exchange: str, *, queue: str | None, key: str, **options: Any) -> Any:
    from notifier.destinations.pulse.listener import ListenSettings, client_name

    try:
        user = urllib.parse.urlsplit(url).username or "guest"
    except ValueError as error:
        raise BadConfig(f"URL: expected amqps://USER@HOST/VHOST: {error}") from error
    try:
        return ListenSettings(
            url=url,
            exchange=exchange,
            queue=queue or f"queue/{user}/{client_name()}",
            routing_key=key,
            password=os.environ.get(_PASSWORD),
            **options,
        )
    except ValueError as error:
        raise BadConfig(str(error)) from error
