# SPDX-License-Identifier: GPL-2.0-or-later
"""The log lines of product code that runs in the process of the tests."""

import logging
from typing import TextIO

import structlog


def write_every_line(file: TextIO | None) -> None:
    """Write lines of every level to a file, with plain tracebacks, which take no time; forget what a service configured."""
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    logging.getLogger().handlers.clear()
    renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(
        processors=[structlog.processors.add_log_level, renderer],
        logger_factory=lambda *_: structlog.PrintLogger(file),
    )
