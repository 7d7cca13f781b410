# SPDX-License-Identifier: GPL-2.0-or-later
"""Schemas of documents: which folders are refused at start, and what a schema means."""

import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from hgext.vcsreplicator.words.errors import BadConfig
from notifier.services.decode import documents
from notifier.services.decode.documents import load_schemas
from notifier.services.decode.payload import read_object
from notifier.services.decode.rejection import DecodingError


def folder_of(folder: Path, schema: Any, name: str = "thing.1") -> str:
    """A folder with one schema."""
    file = folder / "n" / name.partition(".")[0] / f"{name}.schema.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(schema))
    return str(folder)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"properties": {"a": {"$ref": "#/definitions/none"}}}, "properties/a/$ref"),
        ({"properties": {"a": {"$ref": "other.json"}}}, "properties/a/$ref"),
        ({"items": [{"$ref": "urn:elsewhere"}], "$schema": "http://json-schema.org/draft-04/schema#"}, "items/0/$ref"),
        ({"$defs": {"x": {"$dynamicRef": "#none"}}}, "$defs/x/$dynamicRef"),
        ({"properties": {"a": {"pattern": "(unclosed"}}}, "properties/a/pattern"),
        ({"properties": {"a": {"pattern": "\\p{L}"}}}, "properties/a/pattern"),
        ({"patternProperties": {"[": {}}}, "patternProperties/["),
        ({"definitions": {"a": {"not": {"anyOf": [{}, {"pattern": "*"}]}}}}, "definitions/a/not/anyOf/1/pattern"),
    ],
)
def test_a_schema_that_cannot_be_applied_ends_the_start_by_file_and_place(
    tmp_path: Path, schema: Any, place: str
) -> None:
    with pytest.raises(BadConfig) as refused:
        load_schemas(folder_of(tmp_path, schema))
    assert f"thing.1.schema.json: {place}: " in str(refused.value)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/definitions/a", "definitions": {"a": {"type": "object"}}},
        {"$id": "urn:x", "$defs": {"a": {"$id": "urn:y", "$ref": "#b", "$defs": {"b": {"$anchor": "b"}}}}},
        {"$ref": "http://json-schema.org/draft-07/schema#"},
        {"properties": {"$ref": {"type": "string"}, "pattern": {"type": "string"}}},
        {"enum": [{"$ref": "#/none", "pattern": "("}], "default": {"$ref": "#/none"}, "examples": [{"pattern": "("}]},
        {"type": "array", "items": [{"type": "string"}], "$schema": "http://json-schema.org/draft-07/schema#"},
        True,
    ],
    ids=str,
)
def test_a_schema_that_can_be_applied_is_loaded(tmp_path: Path, schema: Any) -> None:
    assert load_schemas(folder_of(tmp_path, schema)).routes == {"n.thing"}


def test_a_schema_of_a_minimal_form_does_not_end_the_start(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {}, "glean.1")
    (tmp_path / "n/glean/glean-min.1.schema.json").write_text("{}")
    assert set(load_schemas(folder).validators) == {("n", "glean", "1")}


def is_valid(folder: Path, schema: Any, body: str) -> bool:
    try:
        load_schemas(folder_of(folder, schema)).check(("n", "thing", "1"), read_object(body.encode(), 10_000))
    except DecodingError:
        return False
    return True


@pytest.mark.parametrize(
    ("divisor", "number", "fits"),
    [
        (0.1, "0.3", True),
        (0.01, "19.99", True),
        (0.01, "4.02", True),
        (0.01, "0.015", False),
        (0.1, "1e30", True),
        (3, "9", True),
        (3, "10", False),
        (1, "1.0", True),
    ],
)
def test_multiples_of_decimals_are_exact(tmp_path: Path, divisor: float, number: str, fits: bool) -> None:
    schema = {"properties": {"n": {"type": "number", "multipleOf": divisor}}}
    assert is_valid(tmp_path, schema, f'{{"n": {number}}}') == fits


def test_a_format_describes_and_rejects_nothing(tmp_path: Path) -> None:
    schema = {"properties": {"x": {"format": "date-time"}}}
    assert is_valid(tmp_path, schema, '{"x": "yesterday"}')


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        pytest.param({"pattern": "^(a+)+$"}, "a" * 25 + "b", id="pattern"),
        pytest.param({"uniqueItems": True}, [*range(4000), "x"], id="uniqueItems"),
        pytest.param(
            {"patternProperties": {"": {}}, "unevaluatedProperties": False},
            dict.fromkeys(map(str, range(12_000))),
            id="unevaluatedProperties",
        ),
    ],
)
def test_a_document_whose_check_takes_too_long_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schema: Any, value: Any
) -> None:
    """Clients choose the input of a schema: 1,600 bytes of gzip took minutes, and all other documents waited."""
    monkeypatch.setattr(documents, "LONGEST", 0.2)
    schemas = load_schemas(folder_of(tmp_path, {"properties": {"a": schema}}))
    with pytest.raises(DecodingError, match=r"its check takes more than 0\.2 s of processor time"):
        schemas.check(("n", "thing", "1"), {"a": value})
    end = time.process_time() + 0.3
    while time.process_time() < end:
        schemas.check(("n", "thing", "1"), {"a": "a"})


TEXTS, NUMBERS = {"items": {"type": "string"}}, {"items": {"type": "number"}}


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
@pytest.mark.parametrize(
    "dialect", ["http://json-schema.org/draft-04/schema#", "https://json-schema.org/draft/2020-12/schema"]
)
def test_a_document_takes_no_memory_for_each_of_its_mistakes(tmp_path: Path, keyword: str, dialect: str) -> None:
    """1.5 kB of gzip took a gigabyte."""
    schemas = load_schemas(
        folder_of(tmp_path, {"$schema": dialect, "properties": {"a": {keyword: [TEXTS, {"type": "null"}]}}})
    )
    body = {"a": [1] * 20_000}
    tracemalloc.start()
    try:
        with pytest.raises(DecodingError, match=f"n/1/thing: properties/a/{keyword}$"):
            schemas.check(("n", "thing", "1"), body)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("keyword", "value", "fits"),
    [
        ("anyOf", "[1]", True),
        ("anyOf", "[]", True),
        ("anyOf", '["a", 1]', False),
        ("oneOf", "[1]", True),
        ("oneOf", "[]", False),
        ("oneOf", '["a", 1]', False),
    ],
)
def test_alternatives_are_one_at_least_or_exactly_one(tmp_path: Path, keyword: str, value: str, fits: bool) -> None:
    schema = {"properties": {"a": {keyword: [TEXTS, NUMBERS]}}}
    assert is_valid(tmp_path, schema, f'{{"a": {value}}}') == fits
