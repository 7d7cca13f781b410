# SPDX-License-Identifier: GPL-2.0-or-later
"""The reason why a message is rejected, in words that quote nothing of it.

Only the text of a DecodingError is used: libraries quote their input in the texts of exceptions. A stack trace consists of files,
lines and code.
"""

import enum
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from hgext.vcsreplicator.words.errors import Rejected

from ...messages.message import clean
from ...messages.raw import OPTIONAL, PRIVATE, REQUIRED, RawMessage

# Causes of an exception that are kept.
CAUSES = 5

# The last characters of each stack trace are kept, this many.
TRACE_KEPT = 8 * 1024

# Attributes of a reject that the message did not come with.
CAUSE_ATTRIBUTES = tuple(f"stack_trace_cause_{number}" for number in range(1, CAUSES + 1))
ERROR_ATTRIBUTES = ("error_type", "error_message", "exception_class", "stack_trace", *CAUSE_ATTRIBUTES)

_KEPT = frozenset((*REQUIRED, *OPTIONAL)) - frozenset(PRIVATE)


class ErrorType(enum.StrEnum):
    """The steps at which a message is rejected."""

    FORM = "form"
    BASE64 = "base64"
    ATTRIBUTES = "attributes"
    URI = "uri"
    COMPRESSION = "compression"
    SIZE = "size"
    JSON = "json"
    SCHEMA = "schema"
    REPEAT = "repeat"
    UNEXPECTED = "unexpected"


class DecodingError(Rejected):
    """A message that cannot be decoded; the text quotes nothing of it."""

    def __init__(self, kind: ErrorType, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeReject:
    """A rejected message without private attributes, and `errors`, which say why.

    `is_cut` if it lacks more of the message than the private attributes.
    """

    raw: RawMessage
    errors: Mapping[str, str]
    is_cut: bool = False

    @property
    def kind(self) -> str:
        return self.errors["error_type"]

    @property
    def size(self) -> int:
        """Bytes of its record in `errors`, about: the payload is in base64 there."""
        texts = (*self.raw.attributes.values(), *self.errors.values())
        return len(self.raw.payload) * 4 // 3 + sum(map(len, texts))

    def without_payload(self) -> "DecodeReject":
        """Return the reject with nothing of the payload, and a remark about that."""
        cut = DecodeReject(raw=RawMessage(b"", self.raw.attributes), errors=self.errors, is_cut=True)
        return cut.with_remark(f"payload of {len(self.raw.payload)} bytes not kept")

    def with_remark(self, remark: str) -> "DecodeReject":
        """Return the reject with more words in its message."""
        return replace(self, errors={**self.errors, "error_message": f"{self.errors['error_message']}; {remark}"})

    def as_raw(self) -> RawMessage:
        """Return the message with all its attributes, which can be decoded again."""
        return RawMessage(self.raw.payload, {**self.raw.attributes, **self.errors})


def without_private(raw: RawMessage) -> RawMessage:
    """Return the message with the known attributes that identify no person."""
    kept = {name: clean(text) for name, text in raw.attributes.items() if name in _KEPT}
    return RawMessage(raw.payload, kept)


def reject(raw: RawMessage, error: Exception, *, is_cut: bool = False) -> DecodeReject:
    """Return the reject of a message that has no private attributes any more."""
    is_ours = isinstance(error, DecodingError)
    errors = {
        "error_type": error.kind if isinstance(error, DecodingError) else ErrorType.UNEXPECTED.value,
        "error_message": str(error) if is_ours else f"unexpected {_class_of(error)}",
        "exception_class": _class_of(error),
        "stack_trace": _stack_trace(error),
    }
    errors.update(zip(CAUSE_ATTRIBUTES, map(_stack_trace, _list_causes(error)), strict=False))
    return DecodeReject(raw=raw, errors={name: str(text) for name, text in errors.items()}, is_cut=is_cut)


def _class_of(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"


def _list_causes(error: BaseException) -> Iterator[BaseException]:
    seen = {id(error)}
    while True:
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if cause is None or id(cause) in seen:
            return
        seen.add(id(cause))
        yield cause
        error = cause


def _stack_trace(error: BaseException) -> str:
    """Return the class and the frames of an exception, without its text."""
    frames = "".join(traceback.format_tb(error.__traceback__, limit=-20))
    return f"{_class_of(error)}\n{frames}"[-TRACE_KEPT:]
