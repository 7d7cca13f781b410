# SPDX-License-Identifier: GPL-2.0-or-later
"""Failures reach Sentry, which is a local endpoint here."""

import gzip
import json
from pathlib import Path

import pytest

from hgext.vcsreplicator.words.errors import BadConfig
from notifier.clients.secret import Secret
from notifier.services.work.commandserver import HgFailed
from notifier.services.work.reporting import FailureReporter
from testing.builders.notifier.endpoint import Endpoint

pytestmark = pytest.mark.processes


def a_secret(folder: Path, text: str) -> Secret:
    place = folder / "dsn"
    place.write_text(text)
    place.chmod(0o600)
    return Secret(file=str(place))


def test_failure_is_sent_with_its_repository(tmp_path: Path) -> None:
    with Endpoint() as sentry:
        reporter = FailureReporter(a_secret(tmp_path, f"http://key@127.0.0.1:{sentry.port}/7"))
        reporter.report(HgFailed("hg pull: exit code 255"), "https://hg.example/x")
        reporter.close()
    [request] = sentry.requests
    envelope = gzip.decompress(request.text.encode("utf-8", "surrogateescape"))
    assert request.path == "/api/7/envelope/"
    event = json.loads(envelope.splitlines()[2])
    assert event["exception"]["values"][-1]["value"] == "hg pull: exit code 255"
    assert event["tags"] == {"repository": "https://hg.example/x"}


def test_without_a_dsn_nothing_is_sent() -> None:
    reporter = FailureReporter(None)
    reporter.report(HgFailed("x"), "y")
    reporter.close()


def test_text_that_is_no_dsn_is_refused_without_showing_it(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"work\.sentry-dsn: expected a DSN"):
        FailureReporter(a_secret(tmp_path, "nonsense"))
