# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator guardian`: the broker's own side of Pulse's specification."""

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

from ..config import Config
from ..service import configure_logging, stop_on_signals
from ..words.errors import Refused
from .options import SECONDS, log_of, run_daemon, with_config, with_json, with_yes

_with_token_file = click.option(
    "--token-file", metavar="FILE", help="Write the token to this new file (mode 0600) instead of standard output."
)


@click.group()
def command() -> None:
    """Enforce Pulse's specification on a RabbitMQ (docs/guardian.md)."""


@command.group()
def user() -> None:
    """Add, list and remove clients, and give them tokens."""


@user.command()
@click.argument("client")
@click.option("--owner", required=True, metavar="MAIL", help="Address for emails about the client's queues.")
@_with_token_file
@with_config
def add(config: Config, client: str, owner: str, token_file: str | None) -> None:
    """Add CLIENT, and print its token once.

    It may declare exchange/CLIENT/… and queue/CLIENT/…, and read from every exchange/….
    """
    with _open_clients(config) as clients, _open_token_file(token_file) as keep:
        _print_token(clients.add(client, owner, keep), token_file)


@user.command()
@click.argument("client")
@_with_token_file
@with_config
def token(config: Config, client: str, token_file: str | None) -> None:
    """Give CLIENT its rights and a new token in place of the old."""
    with _open_clients(config) as clients, _open_token_file(token_file) as keep:
        _print_token(clients.renew_token(client, keep), token_file)


@user.command()
@click.argument("client")
@click.argument("mail")
@with_config
def owner(config: Config, client: str, mail: str) -> None:
    """Send emails about CLIENT's queues to MAIL."""
    with _open_clients(config) as clients:
        clients.change_owner(client, mail)
    click.echo(f"{client}: owned by {mail}")


@user.command()
@click.argument("client")
@with_yes
@with_config
def remove(config: Config, client: str, yes: bool) -> None:
    """Remove CLIENT; its exchanges and queues stay."""
    with _open_clients(config) as clients:
        if not yes:
            clients.owner(client)
            raise Refused(
                f"{client} could not connect any more; its exchanges and queues would stay; add --yes to do it"
            )
        clients.remove(client)
    click.echo(f"{client}: removed")


@user.command("list")
@with_json
@with_config
def list_(config: Config, as_json: bool) -> None:
    """List the clients, and whether their rights are correct."""
    with _open_clients(config) as clients:
        found = clients.all()
    data = [{"client": each.name, "owner": each.owner, "rights": _describe_rights(each)} for each in found]
    rows = [(each.name, each.owner or "unknown", _describe_rights(each)) for each in found]
    from .display import print_listing

    print_listing(data, "clients", ("client", "owner", "rights"), rows, as_json=as_json)


def _describe_rights(client: Any) -> str:
    if not client.is_user:
        return "no user: add it again, or remove it"
    return "its own names" if client.is_confined else "changed: `user token` restores them"


@command.command()
@click.option("--once", is_flag=True, help="Make one round, print what it found, and end.")
@click.option("--dry-run", is_flag=True, help="Send, delete and record nothing; only print what would be done.")
@with_config
def watch(config: Config, once: bool, dry_run: bool) -> None:
    """Warn owners of growing queues, and delete those beyond the limit.

    While another guardian watches, this one stands by, and takes over once the other ends or is silent. With --once it
    watches in place of the other, which then stands by.
    """
    from notifier.services.guardian.watching import QueueWatch, check_secret, run

    settings = _read_settings(config)
    check_secret(settings, config.file)
    if not once:
        run_daemon(config, "guardian", functools.partial(run, file=config.file), settings, has_log=not dry_run)
    configure_logging("guardian")
    with contextlib.ExitStack() as opened:
        log = None if dry_run else opened.enter_context(log_of(config))
        found = opened.enter_context(contextlib.closing(QueueWatch(settings, config.file, log))).round()
    rows = [_list_queue_cells(each, is_dry_run=dry_run) for each in found]
    from .display import console, make_listing

    headings = ("queue", "messages", "consumers", "owner", "state")
    console().print(make_listing("queues to report", headings, [row for row in rows if row[-1]]))


def _list_queue_cells(found: Any, *, is_dry_run: bool) -> tuple[str, ...]:
    queue, notes = found.queue, []
    if found.step.value == "deleted":
        notes.append("would be deleted" if is_dry_run else "deleted")
    elif found.filling:
        notes.append(f"{found.filling.name.lower()} its limit")
    if not queue.consumers:
        notes.append("no consumer")
    if queue.is_bounded is False:
        notes.append("unbounded")
    messages = "?" if queue.messages is None else str(queue.messages)
    return queue.name, messages, str(queue.consumers), found.owner, ", ".join(notes)


@command.command()
@click.option("--client", metavar="CLIENT", help="Check only this client's exchanges, queues, channels and messages.")
@click.option(
    "--sample", default=5.0, type=SECONDS, show_default=True, help="Read messages of publishers for this many seconds."
)
@with_json
@with_config
def check(config: Config, client: str | None, sample: float, as_json: bool) -> None:
    """Check the broker against the specification, line by line.

    Creates a client for the trial and removes it. Exit code 0: nothing failed, 1: a SHOULD failed, 2: a MUST or SHALL
    failed.
    """
    from notifier.services.guardian import checking
    from notifier.services.guardian.requirements import CheckMark

    settings, stop = _read_settings(config), stop_on_signals()
    with log_of(config) as log:
        results = checking.check(settings, config.file, log, client=client, sample=sample, stop=stop)
    rows = [(each.requirement.subject, each.requirement.words, each.mark.value, each.reason) for each in results]
    keys = ("subject", "requirement", "result", "reason")
    data = [dict(zip(keys, row, strict=True)) for row in rows]
    from .display import print_listing

    print_listing(data, "requirements", ("who", *keys[1:]), rows, as_json=as_json)
    failed = [each.requirement for each in results if each.mark is CheckMark.FAIL]
    sys.exit(2 if any(each.is_must for each in failed) else bool(failed))


def _read_settings(config: Config) -> Any:
    from notifier.services.guardian.settings import GuardianSettings

    return config.settings(GuardianSettings, "guardian")


@contextlib.contextmanager
def _open_clients(config: Config) -> Iterator[Any]:
    """Connect to the management API within the block; raises BadConfig if it is none."""
    from notifier.services.guardian.clients import Clients
    from notifier.services.guardian.management import Management

    settings = _read_settings(config)
    with contextlib.closing(Management(settings, config.file)) as management:
        management.check(settings.vhost)
        yield Clients(management, settings.vhost)


@contextlib.contextmanager
def _open_token_file(file: str | None) -> Iterator[Callable[[str], None]]:
    """Yield a function that writes the token to a new file.

    Call it before the broker knows the token: when it returns, the whole token is on disk. If the block fails, as when the broker
    refuses, the file is removed. The function raises Refused if it cannot create the file. If `file` is None, it does nothing.
    """

    def keep(token: str) -> None:
        if file is None:
            return
        try:
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Refused(f"--token-file: {file}: expected a new file: {error.strerror}") from error
        made.append(file)
        with os.fdopen(handle, "w") as opened:
            opened.write(token + "\n")
            opened.flush()
            os.fsync(opened.fileno())

    made: list[str] = []
    try:
        yield keep
    except BaseException:
        for each in made:
            os.unlink(each)
        raise


def _print_token(token: str, file: str | None) -> None:
    click.echo(token if file is None else f"the token is in {file}")
