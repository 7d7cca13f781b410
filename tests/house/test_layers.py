# SPDX-License-Identifier: GPL-2.0-or-later
"""Imports go down, never sideways and never in a circle, and each client library is known to its adapter alone.

The folder of a module is its room, and the room's place in ORDER decides what it may import: its own room and those below.
Modules beside the rooms have a place too. A module without a place fails.
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from testing.services.cache import CHECKOUT
from tests.house.sources import files, nodes

OURS = "hgext.vcsreplicator"
ORDER = {
    OURS: "words < log < keys < outbox, status, aggregator < relay, mirror < hg < service, config < dashboard, demo < cli",
    f"{OURS}.log": "aside, blob_retries, names, ownership, reports, requests, table "
    "< blobs, kafka, outage, owned, sqlite, standby < opening, turns",
    f"{OURS}.keys": "seal < pairs < signed",
    f"{OURS}.mirror": "checkpoint, comparison, forking, metrics, notes, nursery, seals, settings, sources, writer "
    "< namesake, plan, task < copies, mounts, pool < supervision < service < jobs",
    f"{OURS}.aggregator": "decisions, gate, metrics, settings < alarms, completeness, loading, recent_notices, refusals, rereading "
    "< ahead, lasting, offline_roster < watching < session < loop < standby",
    f"{OURS}.dashboard": "acts, asked, deliveries, drawing, graphs, pages, recent, settings < acting, readers, sources, "
    "view < guard, tracing, watcher < feed < application < server",
    # What all of the border uses, and what registers it with Mercurial, are modules beside its rooms.
    f"{OURS}.hg": "trusted < allowed, bundles, closed, frames, hashes, markers, observe, parts, requirement, settings, "
    "text, unknown, wirecommands < pages < master, serving < replica < opening < commands, promoting, registration, relaying",
    f"{OURS}.hg.master": "announcing, capture, creation, disclosure, durability, formats, intents, offer, overlay, pushes, "
    "recovery, refusals, reporting, repository, sending, transactions, twins < acts",
    "pushlog": "settings, versions < seams < preload, store "
    "< api, attribute, checking, copying, fetching, limit, pushed, recording, registration, revsets, streams, stripping, wire "
    "< web",
    "notifier": "messages < delivery < clients < services < destinations < publishing",
    "notifier.messages": "public, raw, schemas < message < pushes",
    "notifier.delivery": "rejects, window < destination",
    "notifier.clients": "authorities, database, lines, secret < amqp, http",
    "notifier.services": "edge, decode, poll, work, guardian",
    "notifier.destinations": "state < jsonlines, pulse, sns, webhook, hgpush < decode",
    "notifier.publishing": "condition, decoding, position, requests, settings < reading < orders < courier < publisher",
}

# A library → the only modules that import it. Loading it costs each process 60 ms and more.
CLIENTS = {
    "kafka": f"{OURS}.log.kafka.",
    "kombu": ("notifier.clients.amqp.", "notifier.services.work.tasks"),
    "celery": "notifier.services.work.tasks",
    "amqp": "notifier.clients.amqp.",
    "boto3": (
        "notifier.destinations.sns.",
        f"{OURS}.log.blobs",
        f"{OURS}.demo.preparation",
    ),  # the demo creates the topic and the bucket that it uses
    "botocore": ("notifier.destinations.sns.", f"{OURS}.log.blobs", f"{OURS}.demo.preparation"),
    "httpx": "notifier.services.poll.",
    "sqlalchemy": "notifier.services.work.",
    "alembic": "notifier.services.work.",
    "sentry_sdk": "notifier.services.work.",
    "re2": f"{OURS}.words.rules",
    "cryptography": f"{OURS}.keys.pairs",
    "redis": "notifier.services.decode.repeats",
    "jsonschema": "notifier.services.decode.documents",
    "maxminddb": "notifier.services.decode.geo",
    "ua_parser": "notifier.services.decode.agent",
    "zstandard": "notifier.services.decode.",
    "uvicorn": ("notifier.services.edge.server", f"{OURS}.service.asgi"),
    "starlette": f"{OURS}.dashboard.",
    "jinja2": f"{OURS}.dashboard.pages",
    "uvloop": "notifier.services.edge.",
    "httptools": "notifier.services.edge.",
}
MERCURIAL = {"mercurial", "hgdemandimport"}
# Loaded by the worker's Mercurial, in a process of its own.
WORKERS_EXTENSION = "notifier.services.work.confinement"
# The file tied to a transaction, which the outbox is too.
APPEND_ONLY_FILE = "pushlog.store.appendfile"
# Loaded in each push: standard library and Mercurial.
PUSH_ONLY = {"pushlog", "hooks"}
OWN = {"hgext", "pushlog", "hooks", "notifier"}


def ranks(order: str) -> dict[str, int]:
    return {name.strip(): rank for rank, names in enumerate(order.split("<")) for name in names.split(",")}


RANKS = {package: ranks(order) for package, order in ORDER.items()}


def module_name(file: Path) -> str:
    parts = file.relative_to(CHECKOUT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(source: str, module: str, *, package: bool) -> Iterator[tuple[int, str]]:
    """Line and absolute name of everything that a module imports, at any depth."""
    parents = module.split(".") if package else module.split(".")[:-1]
    found = nodes(source)
    for node in (*found[ast.Import], *found[ast.ImportFrom]):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = parents[: len(parents) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{name.name}") for name in node.names)


def place(package: str, name: str) -> str | None:
    """The room, or the module beside the rooms, of a name inside a package; None for the package itself and for names elsewhere."""
    return name[len(package) + 1 :].split(".")[0] if name.startswith(f"{package}.") else None


def rank(name: str) -> int | None:
    """Where a name of the extension stands; None for its face and for names elsewhere."""
    room = place(OURS, name)
    return None if room is None else RANKS[OURS].get(room)


def climbs(module: str, name: str) -> str | None:
    """Why an import inside one package goes up or sideways."""
    for package, order in RANKS.items():
        mine, its = place(package, module), place(package, name)
        if mine is None or its is None or mine == its:
            continue
        if mine in order and its in order and order[its] >= order[mine]:
            folder = CHECKOUT / package.replace(".", "/")
            beside = order[its] == order[mine] and not any((folder / name).is_dir() for name in (mine, its))
            return None if beside else f"{its} is not below {mine}"
    return None


def objection(module: str, name: str) -> str | None:
    """Why `module` must not import `name`; None if it may."""
    top, package = name.split(".")[0], module.split(".")[0]
    is_library = top not in sys.stdlib_module_names and top not in OWN
    mine, its = rank(module), rank(name)
    border, room = RANKS[OURS]["hg"], place(OURS, module)
    if top in CLIENTS and not module.startswith(CLIENTS[top]):
        return f"{top} is for {CLIENTS[top]} alone"
    if top in MERCURIAL and room != "hg" and package not in PUSH_ONLY and module != WORKERS_EXTENSION:
        return "Mercurial is for the border: hg/, pushlog and hooks"
    if (package == "pushlog" and top in {"hooks", "notifier"}) or (package == "pushlog" and its is not None):
        return "pushlog knows nothing of the others"
    if package == "hooks" and (top == "notifier" or its is not None):
        return "a hook is usable alone"
    if package in PUSH_ONLY and is_library and top not in MERCURIAL:
        return "a push imports the standard library and Mercurial only"
    is_above_log = (its or 0) > RANKS[OURS]["log"] and place(OURS, name) != "service"
    if package == "notifier" and (top in {"pushlog", "hooks"} or is_above_log):
        return "notifier stands on words, log and service only"
    if room == "words" and is_library and top not in CLIENTS:
        return "words are pure: standard library only"
    if mine is not None and room not in {"dashboard", "cli"} and top in {"notifier", "hooks"}:
        return f"{room} knows nothing of {top}"
    if (
        mine is not None
        and mine < border
        and top == "pushlog"
        and not (room == "outbox" and name.startswith(APPEND_ONLY_FILE))
    ):
        return f"{room} knows nothing of the pushlog, the outbox but its append-only file"
    return climbs(module, name)


def modules() -> list[Path]:
    folders = [CHECKOUT / "hgext" / "vcsreplicator", *(CHECKOUT / name for name in ("pushlog", "hooks", "notifier"))]
    return sorted(file for folder in folders for file in folder.rglob("*.py"))


def test_every_module_has_its_room() -> None:
    names = [module_name(file) for file in modules()]
    homeless = [
        name
        for package, order in RANKS.items()
        for name in names
        if (room := place(package, name)) and room not in order
    ]
    assert not homeless


def test_imports_go_down_only() -> None:
    offending = []
    for file in modules():
        module = module_name(file)
        for line, name in imported(file.read_text(), module, package=file.name == "__init__.py"):
            if reason := objection(module, name):
                offending.append(f"{file.relative_to(CHECKOUT)}:{line}: imports {name}: {reason}")
    assert not offending, "\n".join(offending)


def test_no_stage_loads_a_module_by_name() -> None:
    """An import by name goes where `objection` does not look; what a stage needs of a higher room is handed to it."""
    stages = [file for file in modules() if (mine := rank(module_name(file))) is not None and mine < RANKS[OURS]["hg"]]
    assert not [str(file) for file in stages if "import_module" in file.read_text()]


def graph() -> dict[str, set[str]]:
    """Which module imports which, imports inside functions and those for types included."""
    names = {module_name(file) for file in modules()}
    found: dict[str, set[str]] = {}
    for file in modules():
        module = module_name(file)
        wanted = {name for _, name in imported(file.read_text(), module, package=file.name == "__init__.py")}
        found[module] = {name if name in names else name.rpartition(".")[0] for name in wanted} & names - {module}
    return found


def circle(imports: Mapping[str, set[str]]) -> list[str]:
    """The modules of one circle, or of none: what is left when modules without imports are removed repeatedly."""
    left = dict(imports)
    while leaves := [module for module, wanted in left.items() if not wanted & left.keys()]:
        for module in leaves:
            del left[module]
    return sorted(left)


def test_there_is_no_circle() -> None:
    assert not circle(graph())


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]


def test_rooms_stay_small() -> None:
    """Where more than eighteen files lie together, two rooms are one; `cli` has a file for each verb."""
    folders = {file.parent for file in modules()}
    crowded = [folder for folder in folders if len(list(folder.glob("*.py"))) > 18 and folder.name != "cli"]
    assert not crowded
    assert len(list((CHECKOUT / "hgext" / "vcsreplicator").glob("*.py"))) <= 4


def test_the_notifier_stays_in_six_rooms() -> None:
    """On six floors at most, which `test_imports_go_down_only` holds them to."""
    rooms = {place("notifier", module_name(file)) for file in modules()} - {None}
    assert len(rooms) <= 6
    assert len(set(RANKS["notifier"].values())) <= 6


OUR_IMPORT = re.compile(
    r"^\s*(?:from|import) ((?:hgext\.vcsreplicator|pushlog|hooks|notifier)(?:\.\w+)*)", re.MULTILINE
)


def test_programs_in_strings_import_modules_that_are_there() -> None:
    """Tests start such programs, and nothing else reads their imports."""
    known = {module_name(file) for file in modules()} | {module_name(file.parent) for file in modules()}
    sources = files("tests/*.py", "testing/*.py", "docs/*.md", ":!tests/house")
    missing = {f"{name}: {found}" for name, text in sources for found in OUR_IMPORT.findall(text)}
    assert not sorted(each for each in missing if each.split(": ")[1] not in known)


def named_types(source: str) -> Iterator[str]:
    """The names of a module's classes, and of the types that it gives a name: `NAME = tuple[...]`, `NAME = X | Y`, NewType."""
    found = nodes(source)
    yield from (node.name for node in found[ast.ClassDef] if isinstance(node, ast.ClassDef))
    [module] = found[ast.Module]
    for node in module.body if isinstance(module, ast.Module) else ():
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        is_new = isinstance(node.value, ast.Call) and ast.unparse(node.value.func).endswith("NewType")
        if is_new or isinstance(node.value, ast.Subscript | ast.BinOp):
            name = node.targets[0].id
            # A constant is in capitals.
            if not name.isupper():
                yield name


def test_no_two_types_have_one_name() -> None:
    owners: dict[str, list[str]] = {}
    for file in modules():
        for name in named_types(file.read_text()):
            owners.setdefault(name.removeprefix("_"), []).append(module_name(file))
    assert {name: rooms for name, rooms in owners.items() if len(rooms) > 1} == {}


def test_a_type_that_is_only_named_is_found() -> None:
    aliases = "Pair = tuple[str, int]\nEither = int | str\nId = NewType('Id', int)\n"
    source = aliases + "LIMIT = 1 | 2\nT = TypeVar('T')\nclass Thing: pass"
    assert sorted(named_types(source)) == ["Either", "Id", "Pair", "Thing"]


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (f"{OURS}.words.wire", "from ..log import Topic"),
        (f"{OURS}.words.wire", "import click"),
        (f"{OURS}.words.path", "import re2"),
        (f"{OURS}.log.sqlite.adapter", "from ...relay import move"),
        (f"{OURS}.log.sqlite.adapter", "import kafka"),
        (f"{OURS}.log.sqlite.adapter", "from ..kafka import clients"),
        (f"{OURS}.log.kafka.adapter", "from .. import opening"),
        (f"{OURS}.mirror.supervision.supervisor", "from ..jobs import verify"),
        (f"{OURS}.mirror.pool", "from . import service"),
        (f"{OURS}.aggregator.decisions.arrival", "from ..session import Session"),
        (f"{OURS}.aggregator.watching", "from .loop import run"),
        (f"{OURS}.dashboard.asked", "from . import server"),
        (f"{OURS}.dashboard.acts", "from .watcher import Watcher"),
        (f"{OURS}.relay.loop", "from ..hg import bundles"),
        (f"{OURS}.relay.loop", "from .. import hg"),
        (f"{OURS}.relay.loop", "from ..mirror import plan"),
        (f"{OURS}.relay.loop", "from pushlog import api"),
        (f"{OURS}.status.health", "from ..aggregator import loop"),
        (f"{OURS}.mirror.plan", "def late():\n    from mercurial import node"),
        (f"{OURS}.hg.master.capture", "from ...service import run"),
        (f"{OURS}.hg.master.capture", "from ..serving import guards"),
        (f"{OURS}.hg.text", "from .master import capture"),
        (f"{OURS}.hg.master.recovery", "from .acts import lifecycle"),
        (f"{OURS}.aggregator.loop", "from notifier import message"),
        (f"{OURS}.config", "from notifier import settings"),
        ("pushlog.store.storage", "from hgext.vcsreplicator.words import errors"),
        ("pushlog.store.storage", "from ..web import lookup"),
        ("pushlog.store.storage", "import structlog"),
        ("hooks.size", "from hgext.vcsreplicator.hg.master import capture"),
        ("notifier.destinations.pulse.destination", "from hgext.vcsreplicator.config import load"),
        ("notifier.destinations.sns.destination", "from kombu import Connection"),
        ("notifier.services.work.worker", "import celery"),
        ("notifier.destinations.sns.destination", "from ..pulse import message"),
        ("notifier.services.poll.poller", "from ..work import settings"),
        ("notifier.services.poll.poller", "from ...destinations.state import StateDatabase"),
        ("notifier.destinations.jsonlines", "from pushlog import api"),
    ],
)
def test_a_forbidden_import_is_found(module: str, line: str) -> None:
    assert [name for _, name in imported(line, module, package=False) if objection(module, name)]


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (f"{OURS}.words.wire", "import json"),
        (f"{OURS}.log.kafka.adapter", "from kafka import KafkaProducer"),
        (f"{OURS}.log.opening", "from .kafka.adapter import KafkaLog"),
        (f"{OURS}.mirror.jobs.verify", "from ..service import Mirror"),
        (f"{OURS}.aggregator.session", "from .decisions.arrival import judge"),
        (f"{OURS}.relay.loop", "from ..log import Log"),
        (f"{OURS}.outbox", "from pushlog.store.appendfile import AppendFile"),
        (
            f"{OURS}.hg.master.capture",
            "from mercurial import node\nfrom ...outbox import records\nfrom pushlog import api",
        ),
        (f"{OURS}.cli.daemons", "from ..relay import loop\nimport click"),
        ("pushlog.store.storage", "from mercurial import node\nfrom . import api"),
        ("notifier.clients.amqp.connection", "from kombu import Connection\nfrom hgext.vcsreplicator.log import Log"),
    ],
)
def test_an_allowed_import_passes(module: str, line: str) -> None:
    assert not [name for _, name in imported(line, module, package=False) if objection(module, name)]
