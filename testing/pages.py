# SPDX-License-Identifier: GPL-2.0-or-later
"""Which files the documentation's site has: a hook of MkDocs, see `mkdocs.yml`."""

from pathlib import Path

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
