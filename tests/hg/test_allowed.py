# SPDX-License-Identifier: GPL-2.0-or-later
"""What of a repository's hgrc travels, and what a mirror's Mercurial reads of it."""

import pytest
from mercurial import config

from hgext.vcsreplicator.hg.allowed import allowed, rendered


def read(text: str) -> dict[str, dict[str, str]]:
    """A file of hgrc as Mercurial reads it."""
    found = config.config()
    found.parse(b"hgrc", text.encode())
    return {
        section.decode(): {key.decode(): value.decode() for key, value in found.items(section)} for section in found
    }


@pytest.mark.parametrize(
    "readers", ["alice,\n bob", "\n alice\n bob", "alice # bob\n  [x]\n  %include y\n  key = value"]
)
def test_readers_named_over_several_lines_may_read_and_no_others(readers: str) -> None:
    written = read(f"[web]\nallow_read = {readers}\n")
    assert read(rendered(allowed(written))) == written


@pytest.mark.parametrize("key", ["allow_read", "deny_read"])
@pytest.mark.parametrize("value", ["x" * 20_000, "\udcff", "a\x00b", "alice\n\nbob", "alice\n bob ", "alice\rbob"])
def test_readers_that_cannot_travel_close_the_mirrors(key: str, value: str) -> None:
    assert read(rendered({"web": {key: value, "name": "x"}})) == {"web": {"deny_read": "*", "name": "x"}}


def test_what_a_master_hides_from_clients_is_hidden_by_its_mirrors() -> None:
    sections = {"server": {"view": "immutable"}, "experimental": {"topic.server-gate-topic-changesets": "yes"}}
    assert read(rendered(allowed({**sections, "server": {**sections["server"], "validate": "yes"}}))) == sections


def test_what_runs_loads_or_opens_something_stays_where_it_is() -> None:
    sections = {"hooks": {"update": "rm"}, "web": {"templates": "/x", "name": "x\n\n[hooks]"}, "extensions": {"x": ""}}
    assert read(rendered(sections)) == {}
