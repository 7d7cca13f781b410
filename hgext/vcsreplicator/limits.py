# SPDX-License-Identifier: GPL-2.0-or-later
"""Between which numbers a setting must be."""

from typing import Any

DAY = 86_400.0
GIB = 1024**3


def within(settings: Any, **limits: tuple[float, float]) -> None:
    """Raises ValueError naming the first member that is not between its limits, both included."""
    for name, (least, most) in limits.items():
        value = getattr(settings, name)
        if not least <= value <= most:
            raise ValueError(f"{name}: expected a number from {least:.12g} to {most:.12g}, got {value}")
