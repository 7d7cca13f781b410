# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator listen`: receive messages from an exchange, as a subscriber would."""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import urllib.parse
from typing import Any

import click

from ..service import configure_logging
from ..words.errors import BadConfig, Refused
from .options import check_exposures, with_insecure


@click.command()
@click.argument("url")
@click.argument("exchange")
@click.option("--queue", metavar="NAME", help="queue/<clientId>/<name>  [default: made of user and host]")
@click.option("--key", default="#", show_default=True, metavar="PATTERN", help="Routing keys: * one word, # any.")
@click.option("--run", metavar="COMMAND", help="Run for each message, with the body on its standard input.")
@click.option("--durable/--auto-delete", default=False, help="Keep the queue while nobody listens  [default: no]")
@click.option("--prefetch", default=10, show_default=True, help="Messages under way at once.")
@click.option("--max-length", default=10_000, show_default=True, help="Of the queue; the oldest go first.")
@click.option(
    "--max-message", default=16 * 1024 * 1024, show_default=True, help="Bytes; a larger one ends the command."
)
@click.option("--count", type=int, metavar="N", help="Stop after N messages.")
@click.option("--whole", is_flag=True, help="Print properties and headers too.")
@with_insecure
def command(
    url: str,
    exchange: str,
    run: str | None,
    count: int | None,
    whole: bool,
    insecure: tuple[str, ...],
    **options: Any,
) -> None:
    """Print each message of EXCHANGE at URL as a line of JSON, or run a command with it.

    URL is amqps://USER@HOST/VHOST, with the password in VCSREPLICATOR_LISTEN_PASSWORD. On this machine amqp://… and a password in
    the URL are fine too.
    A message is acknowledged once it is printed, or its command exited with 0; else it comes again. One that is no JSON is
    printed as a string.
    """
    from notifier.pulse.listener import ReceivedMessage, listen

    check_exposures({"URL": url}, insecure)
    configure_logging("listen")
    words = _words(run)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    def show(arrival: ReceivedMessage) -> bool:
        content = _content(arrival.text)
        if whole:
            content = {
                "body": content,
                "routing_key": arrival.routing_key,
                "id": arrival.properties.get("message_id"),
                "type": arrival.properties.get("type"),
                "headers": dict(arrival.headers),
            }
        click.echo(json.dumps(content, sort_keys=True, default=str))
        sys.stdout.flush()
        return True

    def execute(arrival: ReceivedMessage) -> bool:
        environment = {**os.environ, "ROUTING_KEY": arrival.routing_key, "MESSAGE_ID": _text(arrival, "message_id")}
        try:
            ended = subprocess.run(words, input=arrival.text.encode(), env=environment, check=False)
        except OSError as error:
            raise Refused(f"--run: {words[0]} cannot be run: {error.strerror}") from error
        return ended.returncode == 0

    listen(_settings(url, exchange, **options), execute if words else show, stop=stop, limit=count)


def _words(run: str | None) -> list[str]:
    try:
        words = shlex.split(run or "")
    except ValueError as error:
        raise Refused(f"--run: {error}") from error
    if run is not None and not words:
        raise Refused("--run: expected a command")
    return words


def _content(text: str) -> Any:
    """Exchanges are open to everybody."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _settings(url: str, exchange: str, *, queue: str | None, key: str, **options: Any) -> Any:
    from notifier.pulse.listener import ListenSettings, client_name

    user = urllib.parse.urlsplit(url).username or "guest"
    try:
        return ListenSettings(
            url=url,
            exchange=exchange,
            queue=queue or f"queue/{user}/{client_name()}",
            routing_key=key,
            password=os.environ.get("VCSREPLICATOR_LISTEN_PASSWORD"),
            **options,
        )
    except ValueError as error:
        raise BadConfig(str(error)) from error


def _text(arrival: Any, name: str) -> str:
    return str(arrival.properties.get(name) or "")
