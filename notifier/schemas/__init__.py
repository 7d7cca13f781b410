# SPDX-License-Identifier: GPL-2.0-or-later
"""JSON Schemas of all message types, one file each, for receivers."""

import json
from importlib.resources import files
from typing import Any


def schema(type_name: str) -> dict[str, Any]:
    """Return the schema of a message type such as `changegroup.1`.

    It is the schema of `{"type": …, "data": …}`. Raises FileNotFoundError for an unknown type.
    """
    found: dict[str, Any] = json.loads(files(__name__).joinpath(f"{type_name}.json").read_text("utf-8"))
    return found
