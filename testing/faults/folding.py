# SPDX-License-Identifier: GPL-2.0-or-later
"""A folder that answers the product's question as a disk that ignores case does: a name in other case leads to what is there."""

from pathlib import Path


def ignore_case(folder: Path) -> Path:
    """Let a link stand for the other case of the name that the product makes to find out."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "~PROB\u00c9").symlink_to("~prob\u00e9")
    return folder
