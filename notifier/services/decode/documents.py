# SPDX-License-Identifier: GPL-2.0-or-later
"""The JSON Schemas of documents, one for each type and version.

A folder holds them as `<namespace>/<type>/<type>.<version>.schema.json`. All are compiled at start; nothing is fetched. Of itself
`jsonschema` finds a reference to nowhere, and a pattern that is none, when a document reaches it: here both end the start. A check
has a limit of time, since the time of some keywords grows with the square of a document, and that of some patterns without bounds.
"""

import functools
import json
import re
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

import jsonschema
import jsonschema.validators
import jsonschema_specifications  # type: ignore[import-untyped]
import referencing
import referencing.exceptions
import referencing.jsonschema

from hgext.vcsreplicator.words.errors import BadConfig, quote_value

from .rejection import DecodingError, ErrorType

# Namespace, type and version.
DocumentKind = tuple[str, str, str]

_SUFFIX = ".schema.json"

# Seconds of processor time for the check of a document.
LONGEST = 5.0
# The same between two attempts to end a check that lasts longer: Python drops an exception within a generator's removal.
_AGAIN = 0.5

# The documents that schemas may refer to beside themselves: the dialects. Nothing is fetched.
_REGISTRY: Any = jsonschema_specifications.REGISTRY

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


@dataclass(frozen=True, slots=True)
class DocumentSchemas:
    """Validators by namespace, type and version."""

    validators: Mapping[DocumentKind, Any]

    def check(self, kind: DocumentKind, body: Mapping[str, Any]) -> None:
        """Raise DecodingError unless the body matches the schema of its kind.

        The error names the place in the schema, because a place in the body may contain words of the client. In the main thread,
        the check ends after `LONGEST` seconds of processor time.
        """
        namespace, document_type, version = kind
        name = f"{namespace}/{version}/{document_type}"
        validator = self.validators.get(kind)
        if validator is None:
            raise DecodingError(ErrorType.SCHEMA, f"no json schema for {name}")
        try:
            _limit_time()
            error = next(validator.iter_errors(body), None)
        except RecursionError as deep:
            raise DecodingError(ErrorType.JSON, "payload: nested too deep") from deep
        except _TooLong:
            text = f"json schema for {name}: its check takes more than {LONGEST:g} s of processor time"
            raise DecodingError(ErrorType.SCHEMA, text) from None
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        if error is not None:
            place = "/".join(map(str, error.absolute_schema_path))
            raise DecodingError(ErrorType.SCHEMA, f"message did not match json schema for {name}: {place}")

    @property
    def routes(self) -> frozenset[str]:
        """Each `<namespace>.<type>` that has a schema."""
        return frozenset(f"{namespace}.{document_type}" for namespace, document_type, _ in self.validators)


class _TooLong(Exception):
    """The check of a document takes too long."""


def _raise_too_long(*_: object) -> NoReturn:
    raise _TooLong


def _limit_time() -> None:
    """Have a signal end the check that begins; Python handles signals in the main thread alone, also within `re`."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGVTALRM, _raise_too_long)
        signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST, _AGAIN)


def load_schemas(folder: str) -> DocumentSchemas:
    """Compile all schemas in the folder; BadConfig names the key and the file."""
    root = Path(folder)
    if not root.is_dir():
        raise BadConfig(f"decode.schemas: expected a folder of JSON Schemas, got {quote_value(folder)}")
    found = dict(_compile(root, sorted(root.glob(f"*/*/*{_SUFFIX}"))))
    if not found:
        raise BadConfig(f"decode.schemas: {folder}: expected <namespace>/<type>/<type>.<version>{_SUFFIX}, found none")
    return DocumentSchemas(found)


def _compile(root: Path, paths: Iterable[Path]) -> Iterable[tuple[DocumentKind, Any]]:
    for path in paths:
        namespace, document_type, file = path.relative_to(root).parts
        name, _, version = file.removesuffix(_SUFFIX).rpartition(".")
        if name.startswith(f"{document_type}-"):
            continue  # a part of the type's schemas, such as glean-min: no URI names it
        if name != document_type or not version.isdigit():
            raise BadConfig(f"decode.schemas: {path}: expected the name {document_type}.<version>{_SUFFIX}")
        try:
            content = json.loads(path.read_text("utf-8"))
            kind: Any = jsonschema.validators.validator_for(content, default=jsonschema.Draft202012Validator)
            kind.check_schema(content, format_checker=None)
            _check_schema(content, kind)
        except OSError as error:
            raise BadConfig(f"decode.schemas: {path}: cannot be read: {error.strerror}") from error
        except jsonschema.SchemaError as error:
            place = "/".join(map(str, error.absolute_path))
            raise BadConfig(f"decode.schemas: {path}: {place}: not a JSON Schema") from error
        except _WrongSchema as error:
            raise BadConfig(f"decode.schemas: {path}: {error}") from error
        except (ValueError, AttributeError, RecursionError) as error:
            raise BadConfig(f"decode.schemas: {path}: not a JSON Schema") from error
        yield (namespace, document_type, version), _make_exact(kind)(content, registry=_REGISTRY)


class _WrongSchema(ValueError):
    """A schema cannot be applied; the text names the place in it."""


def _check_schema(content: Any, kind: Any) -> None:
    """Refuse a reference that leads nowhere, and a pattern that is none.

    Raises _WrongSchema. `kind` is the class of validators of its dialect, by which it is valid.
    """
    specification = referencing.jsonschema.specification_with(
        kind.ID_OF(kind.META_SCHEMA), default=referencing.Specification.OPAQUE
    )
    root = specification.create_resource(content)
    waiting, places = [(root, _REGISTRY.resolver_with_root(root))], dict(_list_places(content))
    while waiting:
        resource, resolver = waiting.pop()
        part = resource.contents
        place = places.pop(id(part), None)
        if place is None:  # no object of this document, or checked already
            continue
        _check_patterns(part, place)
        waiting += ((each, resolver.in_subresource(each)) for each in resource.subresources())
        for found in _find_targets(part, resolver, place):
            waiting.append((specification.create_resource(found.contents), found.resolver))


def _list_places(content: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield each object in a document, by its `id`, and its place."""
    if isinstance(content, dict):
        yield id(content), place
    if isinstance(content, dict | list):
        for name, value in content.items() if isinstance(content, dict) else enumerate(content):
            yield from _list_places(value, (*place, str(name)))


def _check_patterns(part: Mapping[str, Any], place: tuple[str, ...]) -> None:
    found = [(part["pattern"], (*place, "pattern"))] if "pattern" in part else []
    found += [(pattern, (*place, "patternProperties", pattern)) for pattern in part.get("patternProperties", ())]
    for pattern, at in found:
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise _WrongSchema(f"{'/'.join(at)}: expected an expression of Python's re: {error}") from error


def _find_targets(part: Mapping[str, Any], resolver: Any, place: tuple[str, ...]) -> Iterator[Any]:
    """Yield what the references of a schema lead to."""
    for name in _REFERENCES:
        if isinstance(part.get(name), str):
            try:
                yield resolver.lookup(part[name])
            except referencing.exceptions.Unresolvable as error:
                text = f"{quote_value(part[name])} leads nowhere; other documents are not fetched"
                raise _WrongSchema(f"{'/'.join((*place, name))}: {text}") from error


@functools.cache
def _make_exact(kind: Any) -> Any:
    """Return the class of validators whose `multipleOf` does not round, and whose alternatives keep no mistakes."""
    keywords = {"multipleOf": _check_multiple, "anyOf": _check_any, "oneOf": _check_one}
    known = {name: check for name, check in keywords.items() if name in kind.VALIDATORS}
    return jsonschema.validators.extend(kind, known)  # type: ignore[no-untyped-call]


def _check_multiple(validator: Any, divisor: Any, number: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    """Compare the decimals that were written: 0.3 is a multiple of 0.1."""
    if validator.is_type(number, "number") and Fraction(repr(number)) % Fraction(repr(divisor)):
        yield jsonschema.ValidationError("not a multiple")


def _check_any(validator: Any, schemas: Any, value: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    """Demand that the value matches one of the schemas; `jsonschema` keeps each mistake under each of them."""
    if not any(_list_matches(validator, schemas, value)):
        yield jsonschema.ValidationError("matches none")


def _check_one(validator: Any, schemas: Any, value: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    if sum(_list_matches(validator, schemas, value)) != 1:
        yield jsonschema.ValidationError("does not match exactly one")


def _list_matches(validator: Any, schemas: Any, value: Any) -> Iterator[bool]:
    """Yield for each of the schemas whether the value matches it."""
    return (next(validator.descend(value, each), None) is None for each in schemas)
