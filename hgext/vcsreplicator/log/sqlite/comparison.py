# SPDX-License-Identifier: GPL-2.0-or-later
"""The differences of a topic of the embedded log from the needed one. Pure."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import Topic, TopicComparison, TopicDifference

_FIXED = "# {} is fixed for life: stop all services and begin a new log; the relay sends again what the outboxes keep"


def compare_topic(path: Path, topic: Topic, rows: Sequence[tuple[Any, ...]]) -> TopicComparison:
    """Compare a topic with its row of the database, if there is one.

    The embedded log has no replicas, and no settings besides those of `Topic`.
    """
    if not rows:
        return TopicComparison(name=topic.name)
    [(_, partitions, compacted, retention)] = rows
    found = Topic(name=topic.name, partitions=partitions, compacted=bool(compacted), retention=retention)
    differences, remedies = [], []
    for setting in ("partitions", "compacted"):
        is_there, is_needed = getattr(found, setting), getattr(topic, setting)
        if is_there != is_needed and not (setting == "partitions" and topic.is_divisible):
            differences.append(
                TopicDifference(setting=setting, found=str(is_there), needed=str(is_needed), is_must=True)
            )
            remedies.append(_FIXED.format(setting))
    if found.retention != topic.retention:
        needed = "NULL" if topic.retention is None else f"{topic.retention:g}"
        is_less = found.retention is not None and (topic.retention is None or found.retention < topic.retention)
        kept = "NULL" if found.retention is None else f"{found.retention:g}"
        differences.append(TopicDifference(setting="retention", found=kept, needed=needed, is_must=is_less))
        statement = f"UPDATE topics SET retention = {needed} WHERE name = '{topic.name}'"
        remedies.append(f"sqlite3 {shlex.quote(str(path))} {shlex.quote(statement)}")
    return TopicComparison(name=topic.name, found=found, differences=tuple(differences), remedies=tuple(remedies))
