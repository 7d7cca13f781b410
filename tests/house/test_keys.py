# SPDX-License-Identifier: GPL-2.0-or-later
"""The page about installing names every key of the services' file with its default."""

import dataclasses
import re
from typing import Any

import pytest

from hgext.vcsreplicator.aggregator.loop import AggregatorSettings
from hgext.vcsreplicator.mirror import MirrorSettings
from hgext.vcsreplicator.mirror.jobs.bootstrap import BootstrapSettings
from hgext.vcsreplicator.mirror.jobs.verify import VerifySettings
from hgext.vcsreplicator.relay.daemon import RelaySettings
from hgext.vcsreplicator.status.health import HealthSettings
from testing.services.cache import CHECKOUT

SECTIONS = {
    "relay": RelaySettings,
    "mirror.NAME": MirrorSettings,
    "aggregator": AggregatorSettings,
    "health": HealthSettings,
    "verify": VerifySettings,
    "bootstrap": BootstrapSettings,
}


def default(field: "dataclasses.Field[Any]") -> str:
    """What the page says; texts without a default say in words what is used."""
    if field.default is dataclasses.MISSING:
        return "none" if field.default_factory is not dataclasses.MISSING else "required"
    if isinstance(field.default, bool):
        return str(field.default).lower()
    return f"{field.default:g}" if isinstance(field.default, float) else str(field.default)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_is_on_the_page_with_its_default(section: str) -> None:
    _, _, rest = (CHECKOUT / "docs/install.md").read_text().partition(f"### `[{section}]`\n")
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (.+?) \| .+ \|$", rest.partition("\n#")[0], re.MULTILINE))
    fields = [field for field in dataclasses.fields(SECTIONS[section]) if field.name != "name"]
    assert list(rows) == [field.name.replace("_", "-") for field in fields]
    wrong = [
        field.name
        for field in fields
        if field.default is not None and default(field) != rows[field.name.replace("_", "-")]
    ]
    assert not wrong
