# SPDX-License-Identifier: GPL-2.0-or-later
"""A push cannot bring a whole store, nor an address, in any process."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mercurial import bundle2, error

from pushlog import versions

pytestmark = pytest.mark.processes

# As a site's script would do it, with nothing else of Mercurial made ready.
SCRIPT = """
from types import SimpleNamespace
from mercurial import extensions, ui as uimod
ui = uimod.ui.load()
extensions.loadall(ui)
from mercurial import bundle2, error
from pushlog.versions import initialize
initialize()
streams = [handler for name, handler in bundle2.parthandlermapping.items() if name.startswith(b"stream")]
print(len(streams))
for handler in streams:
    try:
        handler(SimpleNamespace(source=b"push"), None)
    except error.Abort as problem:
        print(problem.message.decode())
"""


@pytest.mark.parametrize("extension", ["pushlog", "vcsreplicator"])
def test_streams_are_refused_in_a_program_that_only_loads_the_extensions(tmp_path: Path, extension: str) -> None:
    (tmp_path / "hgrc").write_text(f"[extensions]\n{extension} =\n[vcsreplicator]\nrole = master\n")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "HGRCPATH": str(tmp_path / "hgrc")},
        capture_output=True,
        text=True,
        check=False,
    )
    count, *refusals = done.stdout.splitlines()
    if extension == "vcsreplicator" and versions.is_older_than(versions.OLDEST_REPLICATED):
        assert not refusals  # nor does it open a repository
        return
    assert int(count) in (1, 2)  # Mercurial 6.3 has one
    assert refusals == ["a push cannot bring a copy of a whole store; push changesets instead"] * int(count), (
        done.stderr
    )


def test_an_address_in_a_push_is_not_asked_and_none_is_offered_to_be(place) -> None:
    server = place("server")
    bundle = bundle2.bundle20(server.repository.ui)
    bundle.newpart(b"remote-changegroup", [(b"url", b"http://127.0.0.1:1/"), (b"size", b"1"), (b"digests", b"")])
    peer = versions.factory.peer(server.repository.ui, {}, os.fsencode(server.folder))
    with pytest.raises(error.BundleUnknownFeatureError, match="remote-changegroup"):
        peer.unbundle(io.BytesIO(b"".join(bundle.getchunks())), [b"force"], b"")
    assert b"remote-changegroup" not in bundle2.getrepocaps(server.repository, role=b"server")
