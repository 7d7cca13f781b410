# SPDX-License-Identifier: GPL-2.0-or-later
"""Questions that may hang, such as those to a broker or a disk."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def ask_aside(name: str, ask: Callable[[], T]) -> "Future[T]":
    """Have a thread of this name answer: the caller decides how long it waits.

    The answer may be an exception. Raises RuntimeError if the system has no thread left.
    """
    answer = Future[T]()

    def find_answer() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=find_answer, name=name, daemon=True).start()
    return answer
