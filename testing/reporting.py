# SPDX-License-Identifier: GPL-2.0-or-later
"""What a worker of `pytest -n` reports: not each setup and teardown that passed, two thirds of all that it would send.

The run counts tests by their calls. Of the phases around them it shows those that failed or printed, and the long ones.
"""

from collections.abc import Callable

import pytest

# What `--durations` leaves out, in seconds.
SHORT = 0.005


def is_shown(report: pytest.TestReport) -> bool:
    """Tell whether a run shows anything of the report."""
    return report.when == "call" or not report.passed or bool(report.sections) or report.duration >= SHORT


def report_what_is_shown(config: pytest.Config) -> None:
    """Send what is shown from here on, if this process is a worker; all if a file asks for it."""
    if not hasattr(config, "workerinput") or getattr(config.option, "xmlpath", None):
        return
    for reporter in config.hook.pytest_runtest_logreport.get_hookimpls():
        if type(reporter.plugin).__name__ == "WorkerInteractor":
            reporter.function = _shown(reporter.function)  # type: ignore[misc]


def _shown(send: Callable[[pytest.TestReport], object]) -> Callable[[pytest.TestReport], object]:
    return lambda report: send(report) if is_shown(report) else None
