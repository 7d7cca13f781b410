# SPDX-License-Identifier: GPL-2.0-or-later
"""How clients find a new master, as docs/operating.md says it."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from hgext.vcsreplicator.demo.ports import free_port
from hgext.vcsreplicator.relay.mastership import Mastership
from hgext.vcsreplicator.service import application
from hgext.vcsreplicator.service.listening import start_server, stop_server
from tests.operate.page import operation

pytestmark = pytest.mark.processes


def read_block(beginning: str) -> str:
    """The example on the page that begins so."""
    blocks = re.findall(r"^```text\n(.*?)^```", operation("Promote a mirror"), re.MULTILINE | re.DOTALL)
    [block] = [block for block in blocks if block.startswith(beginning)]
    return block


def test_the_check_of_a_floating_address_passes_on_the_master_alone() -> None:
    [script] = re.findall(r'script "(.*)"', read_block("vrrp_script"))
    port, mastership = free_port(), Mastership()
    command = shlex.split(script.replace("9101", str(port)))

    def passes() -> bool:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    assert not passes(), "no relay"
    server = start_server(
        application({"/health": mastership}), "here", host="127.0.0.1", port=port, threads=2, largest_body=0
    )
    try:
        assert not passes(), "it starts"
        mastership.find_reason = lambda: None
        assert passes()
        mastership.find_reason = lambda: "hg://new is the master now"
        assert not passes()
    finally:
        stop_server(server)


def test_the_configuration_of_ssh_leads_to_the_machine_that_a_file_names(tmp_path: Path) -> None:
    moved, config = tmp_path / "moved", tmp_path / "config"
    config.write_text(read_block("Match").replace("/etc/hg-is-on-b", str(moved)))

    def find(host: str) -> tuple[str, str]:
        said = subprocess.run(["ssh", "-G", "-F", config, host], capture_output=True, text=True, check=True).stdout
        options = dict(line.split(" ", 1) for line in said.splitlines() if " " in line)
        return options["hostname"], options.get("hostkeyalias", "none")

    assert find("hg.example.org") == ("a.example.org", "hg.example.org")
    moved.touch()
    assert find("hg.example.org") == ("b.example.org", "hg.example.org")
    assert find("other.example.org") == ("other.example.org", "none")
