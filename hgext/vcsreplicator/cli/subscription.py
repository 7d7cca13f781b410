# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator subscription`: asks the notifier to change webhooks, and records who did."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ..config import Config
from ..words.errors import Refused, quote_value, visible
from ..words.secrecy import is_secret_header
from ..words.shape import plain
from .display import print_listing
from .options import (
    TEXT,
    Number,
    complete_subscription,
    with_answer,
    with_config,
    with_json,
    with_last,
    with_wait,
    with_webhook,
    with_yes,
)
from .requests import ask_notifier, find_webhook, open_deliveries, when

if TYPE_CHECKING:
    from notifier.destinations.webhook.subscriptions import StoredSubscription

HEADINGS = ("name", "state", "from", "what is sent")
# Stands for the value of a header that holds a secret.
HIDDEN = "(its value is not shown)"


@click.group()
def command() -> None:
    """Add, test, rotate, remove, pause and resume subscriptions to webhooks."""


@command.command("list")
@with_json
@with_webhook
@with_config
def list_(config: Config, destination: str | None, as_json: bool) -> None:
    """List the subscriptions; of a secret only its file is shown."""
    with open_deliveries(config, destination) as deliveries:
        found = [_as_data(each) for each in deliveries.subscriptions.all()]
        for lost in deliveries.subscriptions.list_unreadable():
            click.echo(f"{visible(lost.name)} cannot be read, and gets nothing: {visible(lost.reason)}", err=True)
    print_listing(found, "subscriptions", HEADINGS, map(_row_of, found), as_json=as_json)


def _as_data(stored: "StoredSubscription") -> dict[str, Any]:
    """Return all members for programs, without the secrets that headers hold."""
    state = "failing" if stored.failing_since else "active"
    wanted = stored.subscription
    headers = {
        name: HIDDEN if is_secret_header(name) else value for name, value in sorted((wanted.headers or {}).items())
    }
    return {
        **plain(stored),
        "state": "paused" if stored.paused_reason else state,
        "paused_reason": stored.paused_reason,
        "failing_since": stored.failing_since,
        "subscription": {
            **{name: value for name, value in plain(wanted).items() if name not in ("key", "former")},
            "filter": wanted.filter,
            "headers": headers,
            "is_signed": wanted.is_signed,
            "former_until": [each.until for each in wanted.former or ()],
        },
    }


def _row_of(data: Mapping[str, Any]) -> tuple[str, ...]:
    state, wanted = data["state"], data["subscription"]
    if data["paused_reason"]:
        state = f"paused: {data['paused_reason']}"
    elif data["failing_since"]:
        state = f"failing since {when(data['failing_since'])} UTC"
    condition = f", if {wanted['filter']}" if wanted["filter"] else ""
    return data["name"], state, data["origin"], f"{' '.join(wanted['types'])} to {wanted['url']}{condition}"


def _check_name(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    from notifier.destinations.webhook.changes import check_name

    try:
        check_name(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return value


@command.command()
@click.argument("name", callback=_check_name)
@click.argument("url", type=TEXT)
@click.option(
    "--filter", type=TEXT, metavar="JMESPATH", help="Send only messages for which this is true; it sees {type, data}."
)
@click.option("--type", "types", type=TEXT, multiple=True, metavar="TYPE", help="Message type; may be repeated.")
@click.option("--method", type=click.Choice(["POST", "PUT"]), default="POST", show_default=True, help="How to send.")
@click.option(
    "--header", "headers", type=TEXT, multiple=True, metavar="NAME:VALUE", help="Send this header; may be repeated."
)
@click.option(
    "--secret-file",
    "secret_files",
    type=TEXT,
    multiple=True,
    metavar="FILE",
    help="Key to sign requests; may be repeated.",
)
@click.option("--unsigned", is_flag=True, help="Send requests without a signature.")
@click.option("--timeout", default=10.0, show_default=True, metavar="SECONDS", help="How long a request may take.")
@click.option("--concurrency", default=4, show_default=True, help="Parallel requests.")
@click.option("--speed", is_flag=True, help="Deliver without order within a repository.")
@with_answer
@with_webhook
@with_config
def add(config: Config, destination: str | None, name: str, url: str, wait: float, **options: Any) -> None:
    """Add a subscription; it gets messages about later pushes.

    Without --secret-file, the command makes a secret for it and shows it only once.
    """
    from notifier.destinations.webhook.changes import request_subscription
    from notifier.destinations.webhook.signing import WrongKey, find_wrong

    subscription = _make_subscription(url, **options)
    chosen, settings = find_webhook(config, destination)
    try:
        settings.check_scheme(subscription)
        find_wrong(subscription.secrets, "--secret-file")
    except (ValueError, WrongKey) as error:
        raise Refused(str(error)) from error
    if subscription.key is not None:  # before the wait: a request that was recorded is carried out even if this ends
        click.echo(f"secret of {name}, shown only once: {subscription.key}")
    ask_notifier(config, chosen, "subscribe", request_subscription(name, subscription), wait=wait)


def _make_subscription(
    url: str, *, headers: tuple[str, ...], secret_files: tuple[str, ...], unsigned: bool, speed: bool, **options: Any
) -> Any:
    from notifier.clients.secret import Secret
    from notifier.destinations.webhook.signing import make_key
    from notifier.destinations.webhook.subscription import Order, Subscription

    if unsigned and secret_files:
        raise Refused("--unsigned: expected no --secret-file")
    pairs = [header.partition(":") for header in headers]
    if wrong := [name for name, colon, _ in pairs if not colon]:
        raise Refused(f"--header: expected NAME:VALUE, got {quote_value(wrong[0])}")
    if not options["types"]:
        del options["types"]
    try:
        return Subscription(
            url=url,
            headers={name.strip(): value.strip() for name, _, value in pairs} or None,
            secrets=tuple(Secret(file=file) for file in secret_files),
            key=None if unsigned or secret_files else make_key(),
            order=Order.SPEED if speed else Order.STRICT,
            **options,
        )
    except ValueError as error:
        raise Refused(str(error)) from error


@command.command()
@click.argument("name", type=TEXT, shell_complete=complete_subscription)
@with_wait(default=30.0, help="How long to wait for the answer of the endpoint.")
@with_webhook
@with_config
def test(config: Config, destination: str | None, name: str, wait: float) -> None:
    """Send an example to the endpoint now, and print its answer.

    The notifier sends it as it sends messages, signed with the keys on its machine. Neither a pause nor the filter holds it back.
    """
    _ask(config, destination, "test-subscription", name, wait)


@command.command()
@click.argument("name", type=TEXT, shell_complete=complete_subscription)
@click.option(
    "--overlap",
    type=Number(0, 31 * 24),
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="How long the former keys sign too; 0 if others know a former key.",
)
@with_answer
@with_webhook
@with_config
def rotate(config: Config, destination: str | None, name: str, overlap: float, wait: float) -> None:
    """Give a subscription a new key, and show the key only once.

    Until the overlap ends, each request has a signature of the new key and of the former one, so that the receiver can change its
    key meanwhile. A subscription that was unsigned is signed from now on.
    """
    from notifier.destinations.webhook.changes import KeyRotation, request_rotation
    from notifier.destinations.webhook.signing import make_key

    chosen, _ = find_webhook(config, destination)
    rotation = KeyRotation(key=make_key(), overlap=overlap * 3600)
    click.echo(f"new secret of {name}, shown only once: {rotation.key}")  # before the wait, as in `add`
    ask_notifier(config, chosen, "rotate-subscription", request_rotation(name, rotation), wait=wait)


@command.command()
@click.argument("name", type=TEXT, shell_complete=complete_subscription)
@with_yes
@with_answer
@with_webhook
@with_config
def remove(config: Config, destination: str | None, name: str, yes: bool, wait: float) -> None:
    """Remove a subscription, and cancel its waiting deliveries."""
    if not yes:
        raise Refused(f"waiting deliveries to {name} would be cancelled; add --yes to do it")
    _ask(config, destination, "unsubscribe", name, wait)


@command.command()
@click.argument("name", type=TEXT, shell_complete=complete_subscription)
@with_answer
@with_webhook
@with_config
def pause(config: Config, destination: str | None, name: str, wait: float) -> None:
    """Pause a subscription; its deliveries wait until it is resumed."""
    _ask(config, destination, "pause-subscription", name, wait)


@command.command()
@click.argument("name", type=TEXT, shell_complete=complete_subscription)
@with_answer
@with_webhook
@with_config
def resume(config: Config, destination: str | None, name: str, wait: float) -> None:
    """Resume a paused subscription."""
    _ask(config, destination, "resume-subscription", name, wait)


def _ask(config: Config, destination: str | None, kind: str, name: str, wait: float) -> None:
    ask_notifier(config, find_webhook(config, destination)[0], kind, {"name": name}, wait=wait)


@command.command()
@with_last(default=30)
@with_json
@with_webhook
@with_config
def history(config: Config, destination: str | None, last: int, as_json: bool) -> None:
    """Show who changed what, pauses by the notifier included."""
    with open_deliveries(config, destination) as deliveries:
        rows = deliveries.subscriptions.history(last)
    lines = [(when(time_), name, what, person) for time_, name, what, person in rows]
    data = [dict(zip(("time", "subscription", "what", "who"), row, strict=True)) for row in rows]
    print_listing(data, "changes", ("when (UTC)", "subscription", "what", "who"), lines, as_json=as_json)
