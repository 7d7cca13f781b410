# SPDX-License-Identifier: GPL-2.0-or-later
"""The JSON Schemas of documents, one for each type and version.

A folder holds them as `<namespace>/<type>/<type>.<version>.schema.json`. All are compiled at start; nothing is fetched.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import jsonschema.validators

from hgext.vcsreplicator.words.errors import BadConfig, quote_value

from .rejection import DecodingError, ErrorType
from .schemacheck import REGISTRY, WrongSchema, check_schema, make_exact

# Namespace, type and version.
DocumentKind = tuple[str, str, str]

_SUFFIX = ".schema.json"


@dataclass(frozen=True, slots=True)
class DocumentSchemas:
    """Validators by namespace, type and version."""

    validators: Mapping[DocumentKind, Any]

    def check(self, kind: DocumentKind, body: Mapping[str, Any]) -> None:
        """Raise DecodingError unless the body matches the schema of its kind.

        The error names the place in the schema, because a place in the body may contain words of the client.
        """
        namespace, document_type, version = kind
        name = f"{namespace}/{version}/{document_type}"
        validator = self.validators.get(kind)
        if validator is None:
            raise DecodingError(ErrorType.SCHEMA, f"no json schema for {name}")
        try:
            error = next(validator.iter_errors(body), None)
        except RecursionError as deep:
            raise DecodingError(ErrorType.JSON, "payload: nested too deep") from deep
        if error is not None:
            place = "/".join(map(str, error.absolute_schema_path))
            raise DecodingError(ErrorType.SCHEMA, f"message did not match json schema for {name}: {place}")

    @property
    def routes(self) -> frozenset[str]:
        """Each `<namespace>.<type>` that has a schema."""
        return frozenset(f"{namespace}.{document_type}" for namespace, document_type, _ in self.validators)


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
            kind = jsonschema.validators.validator_for(content, default=jsonschema.Draft202012Validator)
            kind.check_schema(content, format_checker=None)
            check_schema(content, kind)
        except OSError as error:
            raise BadConfig(f"decode.schemas: {path}: cannot be read: {error.strerror}") from error
        except jsonschema.SchemaError as error:
            place = "/".join(map(str, error.absolute_path))
            raise BadConfig(f"decode.schemas: {path}: {place}: not a JSON Schema") from error
        except WrongSchema as error:
            raise BadConfig(f"decode.schemas: {path}: {error}") from error
        except (ValueError, AttributeError, RecursionError) as error:
            raise BadConfig(f"decode.schemas: {path}: not a JSON Schema") from error
        yield (namespace, document_type, version), make_exact(kind)(content, registry=REGISTRY)
