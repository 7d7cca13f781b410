# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator demo --decode`: the way of a document from a POST to the decoder's output."""

import itertools
import json
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from hgext.vcsreplicator.demo.submission import DOCUMENT, HEADERS
from tests.demo.test_demo import DEMO, running_in

pytestmark = pytest.mark.processes


def test_the_demo_submits_a_document_and_shows_it_decoded(tmp_path: Path) -> None:
    done = subprocess.run([*DEMO, "--decode", "--dir", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "answered with 200: it is durable" in done.stdout
    decoded = json.loads(done.stdout.partition("without the client's address:")[2])
    assert {name: decoded[name] for name in json.loads(DOCUMENT)} == json.loads(DOCUMENT)
    assert decoded["metadata"]["document_type"] == "hgpush"
    assert decoded["metadata"]["user_agent"]["browser"] == "Mercurial"
    address = HEADERS["X-Forwarded-For"]
    written = [*tmp_path.glob("decoded/*"), *tmp_path.glob("output/*")]
    assert len(written) == 3
    assert not [path for path in written if address in path.read_text()]
    assert running_in(tmp_path) == []


def test_ctrl_c_ends_a_demo_that_stays_and_leaves_no_service(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*DEMO, "--decode", "--stay", "--dir", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        printed = "".join(itertools.takewhile(lambda line: not line.startswith("Ctrl-C"), process.stdout))
        assert len(running_in(tmp_path)) >= 3, "the demo, an edge and a decoder"
        [port] = {int(found) for found in re.findall(r"http://127\.0\.0\.1:([0-9]+)/submit/", printed)}
        with pytest.raises(OSError, match="in use"):
            socket.create_server(("127.0.0.1", port)).close()
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == ("", "")
    finally:
        process.kill()
    assert process.returncode == 0
    assert running_in(tmp_path) == []
    socket.create_server(("127.0.0.1", port)).close()


def test_what_does_not_go_with_it_is_refused_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run([*DEMO, "--decode", "--prepare"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert (
        done.stderr.splitlines()[-1] == "Error: --decode can be combined only with --dir, --log, --insecure and --stay"
    )
