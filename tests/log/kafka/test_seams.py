# SPDX-License-Identifier: GPL-2.0-or-later
"""The table of what kafka-python does not document: it is complete, and a version that lacks a name is refused."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.net.manager import KafkaConnectionManager
from kafka.net.transport import KafkaTCPTransport

from hgext.vcsreplicator.log.kafka import seams
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.words.errors import BadConfig
from testing.services.cache import CHECKOUT

FOLDER = CHECKOUT / "hgext/vcsreplicator/log/kafka"
# The library's modules that it documents.
PUBLIC = {"kafka", "kafka.errors", "kafka.admin", "kafka.structs"}
TABLE = {place: {text.partition("(")[0] for text in names.split()} for place, names in seams.SEAMS.items()}
NAMES = set().union(*TABLE.values())


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def unlisted(source: str) -> Iterator[str]:
    """Inner modules of kafka-python, and private names that are not the source's own, which are not in the table."""
    tree = ast.parse(source)
    own, defined, inherited = set[str](), set[str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.attr if isinstance(node, ast.Attribute) else node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call):
            called = node.value.func
            inherited |= {node.attr} if isinstance(called, ast.Name) and called.id == "super" else set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kafka" and not node.level:
            names = {alias.name for alias in node.names}
            if node.module not in PUBLIC and any(f"{node.module}.{name}" not in TABLE for name in names):
                listed = TABLE.get(node.module or "", set()) | {
                    place.partition(":")[2] for place in TABLE if place.startswith(f"{node.module}:")
                }
                yield from (f"{node.module}.{name}" for name in names - listed)
        elif isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in NAMES:
            is_of_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if node.attr in inherited or not (node.attr in defined or (is_of_self and node.attr in own)):
                yield node.attr


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda file: str(file.stem))
def test_no_private_name_of_kafka_python_is_used_outside_the_table(file: Path) -> None:
    assert list(unlisted(file.read_text())) == []


@pytest.mark.parametrize(
    "source",
    [
        "producer._accumulator.flush()",
        "from kafka.net.metrics import KafkaManagerMetrics",
        "class A(KafkaConnectionManager):\n    def a(self):\n        self._bootstrap_future",
        "class A(KafkaConnectionManager):\n    def _on_x(self):\n        super()._on_x()",
    ],
)
def test_a_private_name_that_is_not_in_the_table_is_found(source: str) -> None:
    assert list(unlisted(source))


def test_each_name_of_the_table_is_used() -> None:
    text = "".join(file.read_text() for file in FOLDER.glob("*.py") if file.stem != "seams")
    assert {name for name in NAMES if not re.search(rf"\b{name}\b", text)} == set()


def other_connect(self: object, node: object) -> None: ...


@pytest.mark.parametrize(
    ("owner", "name", "lacking"),
    [
        (KafkaProducer, "_sender", None),
        (KafkaTCPTransport, "_sock_send", "kafka.net.transport.KafkaTCPTransport._sock_send is missing"),
        (KafkaConsumer, "_fetcher_2", "kafka.KafkaConsumer._fetcher_2 is missing"),
        (
            KafkaConnectionManager,
            "_connect",
            "kafka.net.manager.KafkaConnectionManager._connect takes (self,node), "
            "expected (self,node,conn,reset_backoff_on_connect,timeout_at)",
        ),
    ],
)
def test_a_kafka_python_without_a_name_is_refused_in_one_line(
    owner: type, name: str, lacking: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "_connect":
        monkeypatch.setattr(owner, name, other_connect)
    elif name == "_sock_send":
        monkeypatch.delattr(owner, name)
    elif lacking:
        monkeypatch.setitem(seams.SEAMS, "kafka:KafkaConsumer", name)
    monkeypatch.setattr(seams.importlib.metadata, "version", lambda _: "3.2.0")
    seams.check.cache_clear()
    if lacking is None:
        seams.check()
        return
    with pytest.raises(BadConfig) as refused:
        open_log("kafka://127.0.0.1:1")
    assert str(refused.value) == (
        f"log: kafka-python 3.2.0 cannot be used, {lacking}; install 'kafka-python>=3.0.12,<3.1'"
    )


def test_the_versions_that_are_installed_are_those_that_were_tested() -> None:
    assert f'"{seams.TESTED}"' in (CHECKOUT / "pyproject.toml").read_text()
