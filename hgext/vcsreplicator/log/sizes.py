# SPDX-License-Identifier: GPL-2.0-or-later
"""Messages that a topic refuses for their size."""

from dataclasses import dataclass

from ..words.errors import SHOWN, Rejected


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeRecord:
    """A message that its topic refuses.

    It has `size` bytes; the topic takes at most `limit`, if that is known.
    """

    topic: str
    key: str | None
    size: int
    limit: int | None

    def __str__(self) -> str:
        limit = "less" if self.limit is None else f"at most {self.limit}"
        name = None if self.key is None else self.key[:SHOWN]
        return f"topic {self.topic}, key {name}: message of {self.size} bytes, expected {limit}"


class TooLarge(Rejected):
    """Nothing of these records is written, because a topic does not take that much.

    It may take them later, once an operator has corrected its settings. `records` names at least one of those that it refuses.
    """

    def __init__(self, records: tuple[LargeRecord, ...], told: str = "") -> None:
        super().__init__(f"{'; '.join(map(str, records[:3]))}{told}")
        self.records = records
