# SPDX-License-Identifier: GPL-2.0-or-later
"""Imports go to lower layers only, and each client library is known to its adapter alone.

The layers of hgext/vcsreplicator: 0 words (standard library only, but RE2 for rules), 1 log, 2 stages (ports only), 3 the Mercurial
border, 4 surfaces. A module that is in none of them fails here: give it its place in LAYERS.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.services.cache import CHECKOUT

OURS = "hgext.vcsreplicator"
WORDS, LOG, STAGES, BORDER, SURFACES = range(5)
LAYERS = {
    "errors value event wire digest path rules retry clock shape levels streams passing silence unforeseen secrecy "
    "version": WORDS,
    "log": LOG,
    "outbox forks losses blobs relay relay_client relay_fork relay_loss relay_scan relay_sending relay_server relay_work "
    "comparison mirror aggregator aggregator_metrics aggregation alarms arrival held joining outgoing poison "
    "rereading succession roster "
    "roster_offline": STAGES,
    "hg": BORDER,
    "config cli listening service status metrics bootstrap crew verify health cluster": SURFACES,
}
LAYER_OF = {name: layer for names, layer in LAYERS.items() for name in names.split()}

# A library → the only modules that import it. Loading it costs each process 60 ms and more.
CLIENTS = {
    "kafka": {
        f"{OURS}.log.kafka{part}"
        for part in ("", "_broker", "_clients", "_connections", "_options", "_reader", "_records", "_transactor")
    },
    "kombu": {"notifier.amqp", "notifier.listener"},
    "amqp": {"notifier.amqp", "notifier.listener"},
    "boto3": {
        "notifier.sns",
        f"{OURS}.blobs",
        f"{OURS}.cli.demo",
    },  # the demo makes the topic and the bucket it sends to
    "botocore": {"notifier.sns", f"{OURS}.blobs"},
    "re2": {f"{OURS}.rules"},
}
MERCURIAL = {"mercurial", "hgdemandimport"}
APPEND_ONLY_FILE = "pushlog.appendfile"  # the file tied to a transaction, which the outbox is too
PUSH_ONLY = ("pushlog", "hooks")  # loaded in each push: standard library and Mercurial


def module_name(file: Path) -> str:
    parts = file.relative_to(CHECKOUT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(source: str, module: str, *, package: bool) -> Iterator[tuple[int, str]]:
    """Line and absolute name of everything that a module imports, at whatever depth."""
    parents = module.split(".") if package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = parents[: len(parents) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{name.name}") for name in node.names)


def layer(name: str) -> int | None:
    """The layer of a name below `hgext.vcsreplicator`; None for its face and for names elsewhere."""
    inside = name.removeprefix(f"{OURS}.")
    return None if inside == name else LAYER_OF.get(inside.split(".")[0])


def objection(module: str, name: str) -> str | None:
    """Why `module` must not import `name`; None if it may."""
    top, package = name.split(".")[0], module.split(".")[0]
    library = top not in sys.stdlib_module_names and top not in {"hgext", "pushlog", "hooks", "notifier"}
    mine, its = layer(module), layer(name)
    if top in CLIENTS and module not in CLIENTS[top]:
        return f"{top} is for {', '.join(sorted(CLIENTS[top]))} alone"
    if top in MERCURIAL and mine != BORDER and package not in PUSH_ONLY:
        return "Mercurial is for the border: hg/, pushlog and hooks"
    if package == "pushlog" and top in {"hgext", "hooks", "notifier"} and layer(name) is not None:
        return "pushlog knows nothing of the others"
    if package == "hooks" and (top == "notifier" or its is not None):
        return "a hook is usable alone"
    if package in PUSH_ONLY and library and top not in MERCURIAL:
        return "a push imports the standard library and Mercurial only"
    if package == "notifier" and (top in {"pushlog", "hooks"} or (its or 0) > LOG):
        return "notifier stands on words and log only"
    if mine == WORDS and library and top not in CLIENTS:
        return "words are pure: standard library only"
    if mine is not None and mine < SURFACES and top in {"notifier", "hooks"}:
        return f"layer {mine} knows nothing of {top}"
    if (
        mine is not None
        and mine < BORDER
        and top == "pushlog"
        and not (mine == STAGES and name.startswith(APPEND_ONLY_FILE))
    ):
        return f"layer {mine} knows nothing of the pushlog, stages but its append-only file"
    if mine is not None and its is not None and its > mine:
        return f"layer {mine} imports layer {its}"
    return None


def modules() -> list[Path]:
    folders = [CHECKOUT / "hgext" / "vcsreplicator", *(CHECKOUT / name for name in ("pushlog", "hooks", "notifier"))]
    return sorted(file for folder in folders for file in folder.rglob("*.py"))


def test_every_module_has_its_layer() -> None:
    homeless = [
        str(file.relative_to(CHECKOUT))
        for file in modules()
        if (name := module_name(file)).startswith(f"{OURS}.") and layer(name) is None
    ]
    assert not homeless


def test_imports_go_to_lower_layers_only() -> None:
    offending = []
    for file in modules():
        module = module_name(file)
        for line, name in imported(file.read_text(), module, package=file.name == "__init__.py"):
            if reason := objection(module, name):
                offending.append(f"{file.relative_to(CHECKOUT)}:{line}: imports {name}: {reason}")
    assert not offending, "\n".join(offending)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (f"{OURS}.wire", "from .log import Topic"),
        (f"{OURS}.wire", "import click"),
        (f"{OURS}.log.sqlite", "from ..relay import move"),
        (f"{OURS}.log.sqlite", "import kafka"),
        (f"{OURS}.relay.loop", "from ..hg import bundles"),
        (f"{OURS}.relay.loop", "from .. import hg"),
        (f"{OURS}.relay.loop", "from pushlog import api"),
        (f"{OURS}.mirror.plan", "def late():\n    from mercurial import node"),
        (f"{OURS}.hg.capture", "from ..service import run"),
        (f"{OURS}.aggregator.stage", "from notifier import message"),
        ("pushlog.storage", "from hgext.vcsreplicator import errors"),
        ("pushlog.storage", "import structlog"),
        ("hooks.size", "from hgext.vcsreplicator.hg import capture"),
        ("notifier.pulse", "from hgext.vcsreplicator.config import load"),
        ("notifier.sns", "from kombu import Connection"),
        ("notifier.jsonlines", "from pushlog import api"),
        (f"{OURS}.path", "import re2"),
    ],
)
def test_a_forbidden_import_is_found(module: str, line: str) -> None:
    assert [name for _, name in imported(line, module, package=False) if objection(module, name)]


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (f"{OURS}.wire", "import json"),
        (f"{OURS}.log.kafka", "from kafka import KafkaProducer"),
        (f"{OURS}.relay.loop", "from ..log import Log"),
        (f"{OURS}.outbox", "from pushlog.appendfile import AppendFile"),
        (f"{OURS}.hg.capture", "from mercurial import node\nfrom ..outbox import records\nfrom pushlog import api"),
        (f"{OURS}.cli.relay", "from ..relay import loop\nimport click"),
        ("pushlog.storage", "from mercurial import node\nfrom . import api"),
        ("notifier.listener", "from kombu import Connection\nfrom hgext.vcsreplicator.log import Log"),
    ],
)
def test_an_allowed_import_passes(module: str, line: str) -> None:
    assert not [name for _, name in imported(line, module, package=False) if objection(module, name)]
