# SPDX-License-Identifier: GPL-2.0-or-later
"""A mirror becomes the master only with all that the log has."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from hgext.vcsreplicator.cli import promote
from hgext.vcsreplicator.log import EVENTS, Log, NewRecord, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.relay.mastership import claim
from hgext.vcsreplicator.words.errors import Refused
from hgext.vcsreplicator.words.records import MasterRecord


def test_what_a_former_master_sent_in_the_last_instant_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came after the look at the log and before the promotion was recorded; to run the command again is no way round it."""
    url, config, root = f"sqlite://{tmp_path}/log.db", tmp_path / "services.toml", tmp_path / "alpha"
    root.mkdir()
    config.write_text(
        f'log = "{url}"\n[relay]\nsocket = "{tmp_path}/relay.sock"\nsource = "hg://alpha"\n'
        f'[relay.roots]\n"{root}" = ""\n[mirror.alpha]\nroot = "{root}"\nmaster = "https://master/"\n'
    )

    def claim_late(log: Log, wanted: MasterRecord, expected: MasterRecord | None) -> None:
        log.append([NewRecord(topic=EVENTS, key="a" * 32, value=b"late")])
        claim(log, wanted, expected)

    monkeypatch.setattr(promote, "claim", claim_late)
    with open_log(url, creates=True) as log:
        log.create(topics())
    for _ in range(2):
        with pytest.raises(
            Refused, match="1 records of the log are not applied; start the mirror until it is caught up"
        ):
            CliRunner().invoke(
                promote.command,
                ["alpha", "--yes", "--config", str(config)],
                catch_exceptions=False,
                standalone_mode=False,
            )
