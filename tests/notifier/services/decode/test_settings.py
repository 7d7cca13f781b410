# SPDX-License-Identifier: GPL-2.0-or-later
"""The section [decode]: every documented key is one, and every mistake is one line with file, key and what was expected."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hgext.vcsreplicator.config import load
from hgext.vcsreplicator.words.errors import BadConfig
from notifier.services.decode.documents import load_schemas
from notifier.services.decode.geo import client_address, open_geo, read_cities
from notifier.services.decode.settings import DecodeSettings, MessagePlace, PlaceKind
from testing.services.cache import CHECKOUT


def read(tmp_path: Path, section: str) -> DecodeSettings:
    file = tmp_path / "services.toml"
    file.write_text(f'log = "sqlite:///log.db"\n[decode]\n{section}\n')
    return load(file).settings(DecodeSettings, "decode")


def test_every_documented_key_is_one(tmp_path: Path) -> None:
    [example] = re.findall(r"```toml\n(\[decode\].*?)```", (CHECKOUT / "docs/edge-decoder.md").read_text(), re.DOTALL)
    found = read(tmp_path, example.replace("[decode]\n", "", 1))
    documented = set(re.findall(r"^([a-z-]+) =", example.partition("[listen]")[0], re.MULTILINE)) | {"outputs"}
    assert documented == {name.replace("_", "-") for name in DecodeSettings.__dataclass_fields__}
    assert found.place_of("eng-workflow.hgpush") == MessagePlace(
        PlaceKind.FILE, "/srv/decoded/eng-workflow.hgpush.ndjson"
    )
    assert found.place_of("telemetry.main") == MessagePlace(PlaceKind.LOG, "decoded")


def test_defaults_are_those_of_the_docs(tmp_path: Path) -> None:
    [example] = re.findall(r"```toml\n(\[decode\].*?)```", (CHECKOUT / "docs/edge-decoder.md").read_text(), re.DOTALL)
    shown = read(tmp_path, example.replace("[decode]\n", "", 1))
    for name in (
        "input",
        "output",
        "without_id",
        "largest",
        "city_population",
        "load_balancers",
        "repeats",
        "remember",
    ):
        assert getattr(shown, name) == getattr(DecodeSettings(), name)


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ('inputs = "log:raw"', "decode: unknown key 'inputs'"),
        ('input = "raw"', "input: expected log:TOPIC, queue:NAME"),
        ('input = "log:events"', "one of replication"),
        ('input = "file:/x"', "input: expected log:TOPIC or queue:NAME"),
        ('input = "queue:"', "input: expected log:TOPIC or queue:NAME"),
        ('input = "queue:raw"', "broker: expected amqp://"),
        ('output = "file:x"', "output: expected log:TOPIC"),
        ('output = "log:raw"', "output: expected a place other than the input"),
        ('outputs = { "hgpush" = "log:x" }', "outputs: expected <namespace>.<type>"),
        ('outputs = { "eng-workflow.hgpush" = "x" }', "outputs.eng-workflow.hgpush: expected log:TOPIC"),
        ('without-id = ["hgpush"]', "without-id: expected <namespace>.<type>"),
        ("largest = 0", "largest: expected a number of bytes from 1"),
        ('largest = "1 MB"', "largest: expected a whole number"),
        ('repeats = "repeats.db"', "repeats: expected an absolute path"),
        ('repeats = "redis"', "redis: expected redis://"),
        ('repeats = "redis"\nredis = "localhost"', "redis: expected redis://"),
        ('repeats = "redis"\nredis = "redis://127.0.0.1:ab/0"', "redis: expected redis://"),
        ('repeats = "redis"\nredis = "redis://127.0.0.1:99999999/0"', "redis: expected redis://"),
        ('repeats = "redis"\nredis = "redis://127.0.0.1:0/0"', "redis: expected redis://"),
        ('repeats = "redis"\nredis = "redis://[h/0"', "redis: expected redis://"),
        ('repeats = "redis"\nredis = "redis://127.0.0.1/zero"', "redis: expected redis://"),
        ('repeats = "redis"\nredis = "redis://127.0.0.1/0"\nredis-ca-file = "/ca.pem"', "redis-ca-file: expected none"),
        ('input = "queue:raw"\nbroker = "amqps://d@h:567l/"', "broker: expected amqp://"),
        ('input = "queue:raw"\nbroker = "amqps://d@h:0/"', "broker: expected amqp://"),
        ('input = "queue:raw"\nbroker = "amqps://[h/"', "broker: expected amqp://"),
        ('input = "queue:raw"\nbroker = "amqps:///"', "broker: expected amqp://"),
        ("load-balancers = -1", "load-balancers: expected a number from 0"),
    ],
)
def test_a_mistake_is_one_line_with_file_and_key(section: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=re.escape(expected)) as refused:
        read(tmp_path, section)
    assert str(refused.value).startswith(f"{tmp_path}/services.toml: decode")
    assert "\n" not in str(refused.value)


def test_plain_text_to_another_machine_is_refused(tmp_path: Path) -> None:
    for key, url in (("broker", "amqp://broker.example//"), ("redis", "redis://cache.example/0")):
        with pytest.raises(BadConfig, match=f"decode.{key}: .*plain-text"):
            read(tmp_path, f'{key} = "{url}"')


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a/b/b.1.schema.json", "no json", "b.1.schema.json: not a JSON Schema"),
        ("a/b/b.1.schema.json", '{"type": "thing"}', "b.1.schema.json: type: not a JSON Schema"),
        ("a/b/c.1.schema.json", "{}", "expected the name b.<version>.schema.json"),
        ("a/b/b.one.schema.json", "{}", "expected the name b.<version>.schema.json"),
        ("a/b.1.schema.json", "{}", "found none"),
    ],
)
def test_a_wrong_schema_is_named(name: str, content: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(content)
    with pytest.raises(BadConfig, match=re.escape(expected)):
        load_schemas(str(tmp_path))


@pytest.mark.sample(1)
@pytest.mark.processes
@pytest.mark.parametrize("key", ["schemas", "geoip"])
def test_a_missing_file_stops_the_command_with_one_line_and_78(key: str, tmp_path: Path) -> None:
    file = tmp_path / "services.toml"
    file.write_text(f'log = "sqlite://{tmp_path}/log.db"\n[decode]\n{key} = "/nowhere"\n')
    program = os.path.join(os.path.dirname(sys.executable), "vcsreplicator")
    done = subprocess.run([program, "decode", "-c", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 78
    [line] = done.stderr.splitlines()
    assert line.startswith(f"vcsreplicator: {file}: decode.{key}: ")


def test_a_list_of_cities_is_read_by_population(places: Path, tmp_path: Path) -> None:
    assert len(read_cities(str(places / "cities.txt"), 3_000_000)) == 1
    assert not read_cities(str(places / "cities.txt"), 4_000_000)
    (tmp_path / "wrong").write_text("1\tBerlin\n")
    with pytest.raises(BadConfig, match=r"wrong:1: expected"):
        read_cities(str(tmp_path / "wrong"), 0)


def test_a_file_that_is_no_database_of_places_is_named(places: Path) -> None:
    with pytest.raises(BadConfig, match=r"decode.geoip: .*cities.txt"):
        open_geo(str(places / "cities.txt"), None, 0, 0)


@pytest.mark.parametrize(
    ("forwarded", "load_balancers", "expected"),
    [
        ("1.1.1.1", 0, "1.1.1.1"),
        ("1.1.1.1, 2.2.2.2", 0, "2.2.2.2"),
        ("forged, 1.1.1.1, 2.2.2.2,3.3.3.3", 2, "1.1.1.1"),
        ("1.1.1.1", 1, None),
        ("", 0, None),
        ("unknown", 0, None),
        ("::ffff:1.1.1.1", 0, "1.1.1.1"),
        ("fe80::1%eth0", 0, "fe80::1"),
        (None, 0, "9.9.9.9"),
    ],
)
def test_the_address_is_counted_from_the_right(
    forwarded: str | None, load_balancers: int, expected: str | None
) -> None:
    attributes: dict[str, Any] = {"remote_addr": "9.9.9.9"}
    if forwarded is not None:
        attributes["x_forwarded_for"] = forwarded
    assert client_address(attributes, load_balancers) == expected
