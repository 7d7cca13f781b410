# SPDX-License-Identifier: GPL-2.0-or-later
"""The verbs, each loaded when it is used, and how a verb ends.

A mistake of the user gives one line on standard error and exit code 2, a mistake in the configuration 78, a condition that may
pass (a full disk) 1. A traceback means a bug in vcsreplicator.
"""

import gc
import importlib
import os
import sys

import click

from ..words.errors import BadConfig, ReplicationError, visible
from ..words.version import VERSION

# Group → verb → its line in `vcsreplicator --help`, in the order of use.
_GROUPS = {
    "Try it": {
        "demo": "Run a complete installation here, and push to it",
    },
    "Install": {
        "setup": "Make this machine a host, from its users to its services",
    },
    "Services": {
        "relay": "Send events of the master's repositories to the log",
        "mirror": "Apply events on a mirror",
        "aggregator": "Release events, and write notices",
        "notifier": "Deliver notices to destinations",
        "web": "Serve a folder of repositories over HTTP",
        "ssh": "Serve repositories over SSH to a key that may do nothing else",
        "dashboard": "Serve pages that show progress and problems",
    },
    "Operators": {
        "status": "Show progress, and what an operator must do",
        "check": "Say whether an operator must act (for monitoring)",
        "config": "Check the configuration, and show what is in use",
        "trace": "Follow one push through every stage",
        "errors": "Show and retry rejected records and messages",
        "roster": "Show and change the mirrors and which of them gate",
        "bootstrap": "Fill a new mirror from the master",
        "verify": "Compare mirrors with the master",
        "heal": "Ask a mirror to heal detached repositories",
        "backup": "Back up what this machine cannot make again",
        "restore": "Restore a backup, with all services stopped",
        "handover": "Prepare a running master for the promotion of a mirror",
        "promote": "Make a mirror the master, after a handover or a loss",
        "demote": "Save what a former master accepted and did not send",
        "rights": "Give repositories to the user of the services",
        "forget": "Announce the deletion of a repository that was removed by hand",
        "key": "Make the key of a mirror or the aggregator",
        "topics": "Create, check and list the topics of the log",
        "adopt": "Convert the settings of hg.mozilla.org's system",
    },
    "Notices": {
        "listen": "Receive messages from an AMQP exchange",
        "verify-notice": "Say who signed a notice, and which mirrors served it",
        "destination": "List, pause and resume destinations, and skip messages",
        "replay": "Send notices again to one destination",
        "subscription": "Add, test, pause and remove webhooks, and rotate their keys",
        "deliveries": "List, show and repeat deliveries of webhooks",
    },
    "Other services": {
        "poll": "Follow the pushes of other hosts",
        "work": "Record the pushes of a queue in a database",
        "pushes": "List pushes that the worker recorded",
        "edge": "Accept submissions over HTTP",
        "decode": "Validate and enrich submissions, and remove private data",
        "guardian": "Guard a RabbitMQ: clients, queues that grow, conformance",
    },
}
VERBS = {verb: line for group in _GROUPS.values() for verb, line in group.items()}

# Verbs whose memory is bounded: they open repositories that other accounts may write.
_BOUNDED = frozenset({"relay", "setup", "handover", "promote", "demote"})
# Services that keep values of all repositories, without cycles: at a start a quarter of the time went into looking for these.
_LARGE = frozenset({"mirror", "aggregator", "dashboard"})
# Verbs that are commands of `daemons`; each other verb is a module of its own.
DAEMONS = frozenset({"relay", "mirror", "aggregator", "notifier", "edge", "poll", "work"})

# Verbs that run until they are stopped, and write log lines.
_SERVICES = {*_GROUPS["Services"], *_GROUPS["Other services"]} - {"ssh", "pushes"}


class _Verbs(click.Group):
    """A group that lists its verbs without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        if name in _SERVICES:
            load_structlog()
        module, command = ("daemons", name) if name in DAEMONS else (name.replace("-", "_"), "command")
        found: click.Command = getattr(importlib.import_module(f"{__package__}.{module}"), command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in VERBS and not ctx.resilient_parsing:
            import difflib  # only for a mistake

            if near := difflib.get_close_matches(args[0], VERBS, n=1):
                ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, VERBS))
        for group, verbs in _GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(verb.ljust(width), line) for verb, line in verbs.items()])


def load_structlog() -> None:
    """Load structlog without rich.

    Call it before the first import of structlog, which on its own loads rich to colour tracebacks on a terminal: a tenth of a
    service's memory.
    """
    if not sys.modules.keys() & {"rich", "structlog"}:
        sys.modules["rich"] = None  # type: ignore[assignment]  # as Python documents it: an import fails
        importlib.import_module("structlog")
        del sys.modules["rich"]


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80})
@click.version_option(VERSION, prog_name="vcsreplicator")
def program() -> None:
    """Replicate Mercurial pushes, and announce each when all mirrors serve it."""


def run() -> None:
    """Run the verb that the command line names, and exit with its code."""
    _open_standard_streams()
    if _BOUNDED.intersection(sys.argv[1:2]):
        from ..words.memory import bound_to_half  # imported only here: most verbs do not need it

        bound_to_half()
    if _LARGE.intersection(sys.argv[1:2]):
        gc.set_threshold(20_000, 10, 10)
    try:
        program.main(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except BadConfig as error:
        _show_error(error)
        sys.exit(1 if _is_passing(error) else 78)
    except ReplicationError as error:
        _show_error(error)
        sys.exit(2)
    except MemoryError:
        click.echo("vcsreplicator: more memory is needed than this process may use", err=True)
        sys.exit(1)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:
        if not isinstance(error, PermissionError) and not _is_passing(error):
            raise
        reason = _describe_denied(error) if isinstance(error, PermissionError) else str(error)
        click.echo(f"vcsreplicator: {reason}", err=True)
        sys.exit(2 if isinstance(error, PermissionError) else 1)


def _show_error(error: Exception) -> None:
    """Print an error without control characters, which a name in the log may have; its lines stay lines."""
    click.echo("\n".join(map(visible, f"vcsreplicator: {error}".split("\n"))), err=True)


def _open_standard_streams() -> None:
    """Lead standard streams that are closed (`2>&-`) to nowhere.

    Child processes have them too. Otherwise the next file or connection would get such a number, and receive what libraries and
    child processes write there.
    """
    for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        if stream is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere == number:
                os.set_inheritable(number, True)
            else:
                os.dup2(nowhere, number)
                os.close(nowhere)
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115


def _describe_denied(error: PermissionError) -> str:
    """Name the file that this user may not use, and the user who may."""
    if not isinstance(error.filename, str | bytes):
        return str(error)
    # Imported only here: a verb that succeeds does not need it.
    from ..log.ownership import name_owner

    path = os.fsdecode(error.filename)
    return f"{path}: {error.strerror}{name_owner(path)}"


def _is_passing(error: BaseException) -> bool:
    # Imported only here: a verb that succeeds needs no SQLite for it.
    from ..words.passing import is_passing

    return is_passing(error)
