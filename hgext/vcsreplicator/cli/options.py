# SPDX-License-Identifier: GPL-2.0-or-later
"""Options that several verbs share, and functions that complete or open values."""

import contextlib
import functools
import math
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from ..config import DEFAULT_FILE, Config, load
from ..log import Log
from ..log.names import expect_exact_names
from ..log.opening import open_log
from ..words.clock import DAY
from ..words.errors import BadConfig
from ..words.secrecy import Exposure, exposures

if TYPE_CHECKING:
    from ..mirror import MirrorSettings
    from ..relay.settings import RelaySettings


class Number(click.FloatRange):
    """A number within its limits; `nan` is not a number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not a number", param, ctx)
        return number


class Text(click.types.StringParamType):
    """Text; bytes that are not UTF-8 can be neither stored nor sent."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            str(value).encode()
        except UnicodeEncodeError:
            self.fail("expected text in UTF-8", param, ctx)
        return str(value)


SECONDS = Number(0, 31 * DAY)
TEXT = Text()
HOW_MANY = click.IntRange(1, 1_000_000)


def _make_completion(list_names: Callable[[Config, str], Iterable[str]]) -> Callable[..., list[str]]:
    """Make a completion with the names that the services' file leads to.

    `list_names` gets what was typed of the name too; names that were typed already are left out. No broker is asked. If the
    file cannot be read, nothing is completed.
    """

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        given = ctx.params.get(parameter.name or "") if parameter.nargs == -1 else None
        try:
            file = ctx.params.get("file") or os.environ.get("VCSREPLICATOR_CONFIG") or DEFAULT_FILE
            found = sorted({*list_names(load(file), incomplete)} - {*(given or ())})
        except Exception:  # an error would be printed into the line that the user types
            return []
        return [name for name in found if name.startswith(incomplete)]

    return complete


def _name_destinations(config: Config, kind: str | None = None) -> list[str]:
    return [
        name
        for name, table in config.tables["notifier"].items()
        if isinstance(table, Mapping) and (kind is None or table["type"] == kind)
    ]


def _name_repositories(config: Config, typed: str) -> list[str]:
    """Name the repositories, and the folders above some, whose paths begin as typed.

    Searches the roots of the relay and the mirrors on this machine. Reads one folder of each root; if a single name fits there,
    it reads that folder too.
    """
    relay, mirrors = relay_of(config), config.tables.get("mirror", {})
    roots = {**(relay.roots if relay else {}), **{table["root"]: "" for table in mirrors.values()}}
    while True:
        parent = typed.rpartition("/")[0]
        found = sorted({name for name in _list_folders(roots, parent) if name.startswith(typed)})
        if len(found) != 1 or not found[0].endswith("/") or found[0] == typed:
            return found
        typed = found[0]


def _list_folders(roots: Mapping[str, str], parent: str) -> Iterator[str]:
    from ..relay.gone.finding import find_places

    if any(part.startswith(".") for part in parent.split("/")):
        return
    if not parent:
        yield from (f"{prefix.strip('/')}/" for prefix in roots.values() if prefix.strip("/"))
    for place in find_places(parent and f"{parent}/", roots):
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                if not entry.name.startswith(".") and entry.is_dir():
                    is_repository = os.path.isdir(os.path.join(entry.path, ".hg"))
                    yield f"{parent}/{entry.name}".lstrip("/") + ("" if is_repository else "/")


complete_mirror = _make_completion(lambda config, _: config.tables["mirror"])
complete_repository = _make_completion(_name_repositories)
complete_destination = _make_completion(lambda config, _: _name_destinations(config))
complete_webhook = _make_completion(lambda config, _: _name_destinations(config, "webhook"))
complete_subscription = _make_completion(
    lambda config, _: [
        name for each in _name_destinations(config) for name in config.tables["notifier"][each].get("subscriptions", ())
    ]
)

with_webhook = click.option(
    "--destination",
    metavar="NAME",
    help="Webhook destination; required if there are several.",
    shell_complete=complete_webhook,
)
# The verb passes the values to `check_exposures`.
with_insecure = click.option(
    "--insecure",
    multiple=True,
    type=click.Choice([Exposure.PLAIN_TEXT.value, Exposure.PASSWORD.value]),
    help="Allow this exposure of data or secrets; may be repeated.",
)
with_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
takes_json = click.option(
    "--json", is_flag=True, expose_value=False, help="As on other verbs; this one always prints JSON."
)
with_last = functools.partial(click.option, "--last", type=HOW_MANY, show_default=True, help="Number of rows to show.")
with_wait = functools.partial(click.option, "--wait", type=SECONDS, show_default=True, metavar="SECONDS")
with_answer = with_wait(default=10.0, help="How long to wait for the answer of the notifier.")
with_yes = click.option("--yes", is_flag=True, help="Do it. Without --yes, only print what the command would do.")


# The verb gets the path; `with_config` reads the file too.
with_config_file = click.option(
    "-c",
    "--config",
    "file",
    default=DEFAULT_FILE,
    envvar="VCSREPLICATOR_CONFIG",
    show_default=True,
    show_envvar=True,
    metavar="FILE",
    help="The TOML file of the services.",
)


def with_config(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--config FILE`; the verb gets the `Config` as its first argument."""

    @with_config_file
    @functools.wraps(function)
    def wrapped(*arguments: Any, file: str, **options: Any) -> Any:
        config: Config = load(file)
        return function(config, *arguments, **options)

    return wrapped


def log_of(config: Config, *, creates: bool = False) -> Log:
    """Open the log as `open_log` does; a BadConfig names the file."""
    with naming(config):
        return open_log(config.log, creates=creates)


def mirror_settings(config: Config, name: str) -> "MirrorSettings":
    """Read the section [mirror.NAME]; raises BadConfig if it is missing or wrong."""
    from ..mirror import MirrorSettings

    return config.settings(MirrorSettings, "mirror", name, name=name, blobs=config.blobs)


def run_daemon(
    config: Config,
    role: str,
    run: Callable[..., None],
    settings: object,
    *,
    has_log: bool = True,
    **answers: Callable[[Log], Any],
) -> None:
    """Run a stage as a daemon until a signal stops it, and exit with its code.

    It gets the log, if it has one. `answers` are functions that make arguments of `serve`, such as `pages`, from the log.
    """
    from ..service import configure_logging, serve

    configure_logging(role)
    with contextlib.ExitStack() as kept:
        logs = [kept.enter_context(log_of(config))] if has_log else []
        made = {name: make(*logs) for name, make in answers.items()}

        def named(stop: threading.Event, ready: Callable[[], None]) -> None:
            with naming(config):
                run(settings, *logs, stop=stop, ready=ready)

        sys.exit(serve(named, listen=config.listen(role), key=config.listen_key(role), **made))


@contextlib.contextmanager
def naming(config: Config) -> Iterator[None]:
    """Add the name of the file to a BadConfig of the block that lacks it."""
    try:
        yield
    except BadConfig as error:
        if str(error).startswith(f"{config.file}: "):
            raise
        raise BadConfig(f"{config.file}: {error}") from error


@contextlib.contextmanager
def needing(extra: str) -> Iterator[None]:
    """Turn the block's ModuleNotFoundError into a BadConfig.

    Its message says how to install the extra in a checkout: there is no package of this name to install from elsewhere.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise BadConfig(
            f"{error.name} is not installed; in a checkout run: {sys.executable} -m pip install '.[{extra}]'"
        ) from None


def check_exposures(urls: Mapping[str, str | None], insecure: Collection[str]) -> None:
    """Raise BadConfig for an exposure in a URL that `insecure` does not allow.

    `urls` maps each option to its URL.
    """
    for name, url in urls.items():
        for exposure, found in exposures(url or ""):
            if exposure.value not in insecure:
                raise BadConfig(f"{name}: {found}; if it is meant, add --insecure {exposure.value}")


def relay_of(config: Config) -> "RelaySettings | None":
    """Read the section [relay]; None if the file has none."""
    from ..relay.settings import RelaySettings

    return config.settings(RelaySettings, "relay", blobs=config.blobs) if "relay" in config.tables else None


def expect_exact_roots(config: Config, relay: "RelaySettings") -> None:
    """Raise BadConfig if the disk of a root of the relay takes two names for one."""
    with naming(config):
        for root in relay.roots:
            expect_exact_names(root, "relay.roots")
