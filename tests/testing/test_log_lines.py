# SPDX-License-Identifier: GPL-2.0-or-later
"""What a service of an earlier test configured is forgotten."""

import io

import structlog
from structlog.testing import capture_logs

from hgext.vcsreplicator.service import configure_logging
from testing.log_lines import write_every_line


def test_a_test_sees_every_line_after_a_service_ran_in_its_process() -> None:
    configure_logging("listen")
    written = io.StringIO()
    write_every_line(written)
    logger = structlog.get_logger()
    with capture_logs() as lines:
        logger.debug("seen")
    logger.debug("written")
    assert [line["event"] for line in lines] == ["seen"]
    assert "written" in written.getvalue()
    assert "service" not in written.getvalue()
