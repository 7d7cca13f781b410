# SPDX-License-Identifier: GPL-2.0-or-later
"""Which files the documentation's site has, and how its tables fit a phone: hooks of MkDocs, see `mkdocs.yml`."""

import itertools
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

# Pages, and what they link to.
PATTERNS = (
    "*.md",
    "tests/README.md",
    "docs/**/*.*",
    "notifier/messages/schemas/**/*.json",
    "pushlog/schemas/*.json",
    "Dockerfile",
    "compose.yaml",
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace what MkDocs found in `docs_dir` by files with their paths in the repository; keep the theme's own files."""
    root = Path(config.config_file_path).parent
    found = sorted({path.relative_to(root).as_posix() for pattern in PATTERNS for path in root.glob(pattern)})
    pages = [File(path, str(root), config.site_dir, config.use_directory_urls) for path in found]
    return Files([*(file for file in files if file.src_dir != config.docs_dir), *pages])


def on_page_content(html: str, **_: Any) -> str:
    """Give each cell of a table the name of its column: on a phone `docs/site.css` shows cells below each other."""
    return re.sub(r"<table>.*?</table>", lambda table: label_cells(table[0]), html, flags=re.DOTALL)


def label_cells(table: str) -> str:
    """Name the column of each cell; a row has as many cells as the head has."""
    names = [re.sub(r"<.*?>", "", name) for name in re.findall(r"<th\b[^>]*>(.*?)</th>", table, re.DOTALL)]
    columns = itertools.cycle(names)
    return re.sub(r"<td\b", lambda _: f'<td data-column="{next(columns)}"', table)
