# SPDX-License-Identifier: GPL-2.0-or-later
"""What a schema must have to be applied, and how numbers are compared.

`jsonschema` finds a reference to nowhere, and a pattern that cannot be compiled, when a document reaches it. Pure.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import jsonschema
import jsonschema.validators
import jsonschema_specifications
import referencing
import referencing.exceptions
import referencing.jsonschema

from hgext.vcsreplicator.words.errors import quote_value

# The documents that schemas may refer to beside themselves: the dialects. Nothing is fetched.
REGISTRY: Any = jsonschema_specifications.REGISTRY

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")

# Keywords whose value is a schema or a list of schemas, and those whose value is an object of schemas.
_SCHEMAS = frozenset(
    (
        *(
            "additionalItems",
            "additionalProperties",
            "allOf",
            "anyOf",
            "contains",
            "else",
            "extends",
            "if",
            "items",
            "not",
        ),
        *("oneOf", "prefixItems", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
    )
)
_OBJECTS = frozenset(("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"))

# A schema, what resolves its references, and its place.
_Part = tuple[Any, Any, tuple[str, ...]]


class WrongSchema(ValueError):
    """A schema cannot be applied; the text names the place in it."""


def check_schema(content: Any, kind: Any) -> None:
    """Raise WrongSchema if a reference leads nowhere, or a pattern cannot be compiled.

    `kind` is the class of validators of its dialect, by which it is valid.
    """
    specification = referencing.jsonschema.specification_with(
        kind.ID_OF(kind.META_SCHEMA), default=referencing.Specification.OPAQUE
    )
    resolver = REGISTRY.resolver_with_root(specification.create_resource(content))
    parts: list[_Part] = [(content, resolver, ())]
    seen, targets = set[int](), list[_Part]()
    while parts or targets:
        # References last, so that an error has the place of the text rather than that of a reference to it.
        part, resolver, place = (parts or targets).pop()
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        if place:
            resolver = resolver.in_subresource(specification.create_resource(part))
        _check_patterns(part, place)
        targets += _find_targets(part, resolver, place)
        parts += ((schema, resolver, (*place, *at)) for schema, at in _list_schemas(part))


def _check_patterns(part: Mapping[str, Any], place: tuple[str, ...]) -> None:
    found = [(part["pattern"], (*place, "pattern"))] if "pattern" in part else []
    found += [(pattern, (*place, "patternProperties", pattern)) for pattern in part.get("patternProperties", ())]
    for pattern, at in found:
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise WrongSchema(f"{'/'.join(at)}: expected an expression of Python's re: {error}") from error


def _find_targets(part: Mapping[str, Any], resolver: Any, place: tuple[str, ...]) -> Iterator[_Part]:
    """Yield what the references of a schema lead to."""
    for name in _REFERENCES:
        if isinstance(part.get(name), str):
            try:
                found = resolver.lookup(part[name])
            except referencing.exceptions.Unresolvable as error:
                text = f"{quote_value(part[name])} leads nowhere; other documents are not fetched"
                raise WrongSchema(f"{'/'.join((*place, name))}: {text}") from error
            if "://json-schema.org/" not in part[name]:
                yield found.contents, found.resolver, (*place, name)


def _list_schemas(part: Mapping[str, Any]) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Yield the schemas within a schema, with their places in it."""
    for name, value in part.items():
        if name in _SCHEMAS and isinstance(value, list):
            yield from ((schema, (name, str(number))) for number, schema in enumerate(value))
        elif name in _SCHEMAS:
            yield value, (name,)
        elif name in _OBJECTS and isinstance(value, dict):
            yield from ((schema, (name, member)) for member, schema in value.items())


@functools.cache
def make_exact(kind: Any) -> Any:
    """Return the class of validators with a `multipleOf` that knows no error of rounding."""
    return jsonschema.validators.extend(kind, {"multipleOf": _check_multiple})


def _check_multiple(validator: Any, divisor: Any, number: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    """Compare the decimals that were written: 0.3 is a multiple of 0.1."""
    if validator.is_type(number, "number") and Fraction(repr(number)) % Fraction(repr(divisor)):
        yield jsonschema.ValidationError("not a multiple")
