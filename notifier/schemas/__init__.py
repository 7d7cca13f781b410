# SPDX-License-Identifier: GPL-2.0-or-later
"""JSON Schemas of all message types, one file each, for whoever wants to check what they get."""

import json
from importlib.resources import files
from typing import Any


def schema(type_name: str) -> dict[str, Any]:
    """The schema of `{"type": …, "data": …}` for one type, such as `changegroup.1`; raises FileNotFoundError."""
    found: dict[str, Any] = json.loads(files(__name__).joinpath(f"{type_name}.json").read_text("utf-8"))
    return found
