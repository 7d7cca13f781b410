# SPDX-License-Identifier: GPL-2.0-or-later
"""What is kept of an unexpected exception, and which exceptions are no fault of the record."""

import errno

import pytest

from hgext.vcsreplicator.words.errors import MalformedEvent, Unavailable
from hgext.vcsreplicator.words.unexpected import OUT_OF_MEMORY, TRACEBACK_KEPT, describe, fault


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def test_a_fault_is_one_line_and_a_traceback() -> None:
    found = fault(raised(KeyError("two\nlines")))
    assert found is not None
    assert found.reason == "unexpected KeyError: 'two\\nlines'"
    assert found.traceback.startswith("Traceback")
    assert "in raised" in found.traceback


@pytest.mark.parametrize(
    "error",
    [Unavailable("no broker"), MalformedEvent("no frame"), MemoryError(), OSError(errno.ENOSPC, "no room")],
    ids=lambda error: type(error).__name__,
)
def test_what_was_foreseen_or_is_the_machines_is_no_fault_of_a_record(error: Exception) -> None:
    assert fault(raised(error)) is None


def test_an_error_that_cannot_be_told_is_kept_all_the_same() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise ValueError("Exceeds the limit")

    found = fault(raised(Silent()))
    assert found is not None
    assert found.reason == "unexpected Silent: no text: ValueError"
    assert "in raised" in found.traceback


def test_an_error_behind_a_lack_of_memory_says_so() -> None:
    def fail() -> None:
        try:
            raise MemoryError
        except MemoryError:
            raise ValueError("not readable")  # noqa: B904

    with pytest.raises(ValueError, match="not readable") as found:
        fail()
    assert describe(found.value) == describe(MemoryError()) == OUT_OF_MEMORY
    assert (describe(ValueError("x")), describe(KeyError())) == ("x", "KeyError")


@pytest.mark.timeout(10)
def test_an_error_that_led_to_itself_is_described() -> None:
    error = ValueError("x")
    error.__cause__ = error
    assert describe(error) == "x"


def test_what_is_kept_is_bounded() -> None:
    found = fault(raised(RuntimeError("x" * 10 * TRACEBACK_KEPT)))
    assert found is not None
    assert len(found.reason) <= 300
    assert len(found.traceback) == TRACEBACK_KEPT
