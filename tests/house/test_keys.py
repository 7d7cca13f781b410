# SPDX-License-Identifier: GPL-2.0-or-later
"""The page about installing and `config example` name every key of these sections with its default."""

import dataclasses
import re
import tomllib
import typing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hgext.vcsreplicator.aggregator.loop import AggregatorSettings
from hgext.vcsreplicator.cli import program
from hgext.vcsreplicator.cli.config import _check_sections
from hgext.vcsreplicator.config import load
from hgext.vcsreplicator.mirror import MirrorSettings
from hgext.vcsreplicator.mirror.jobs.bootstrap import BootstrapSettings
from hgext.vcsreplicator.mirror.jobs.verify import VerifySettings
from hgext.vcsreplicator.relay.settings import RelaySettings
from hgext.vcsreplicator.status.health import HealthSettings
from hgext.vcsreplicator.words.retry import Backoff
from notifier.decode.settings import DecodeSettings
from notifier.destination import DESTINATIONS, settings_class
from notifier.edge.settings import EdgeSettings
from notifier.guardian.settings import GuardianSettings
from notifier.poll.settings import PollSettings
from notifier.webhook.subscription import Subscription
from notifier.window import Patience
from notifier.work.settings import WorkSettings
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


def rows_of_the_page(section: str) -> list[tuple[str, str, str]]:
    """Key, default and meaning of each row."""
    _, _, rest = (CHECKOUT / "docs/install.md").read_text().partition(f"### `[{section}]`\n")
    return re.findall(r"^\| `([a-z-]+)` \| (.+?) \| (.+) \|$", rest.partition("\n#")[0], re.MULTILINE)


def example() -> str:
    """What `vcsreplicator config example` prints."""
    result = CliRunner().invoke(program, ["config", "example"])
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_is_on_the_page_with_its_default(section: str) -> None:
    rows = {key: value for key, value, _ in rows_of_the_page(section)}
    fields = [field for field in dataclasses.fields(SECTIONS[section]) if field.name != "name"]
    assert list(rows) == [field.name.replace("_", "-") for field in fields]
    wrong = [
        field.name
        for field in fields
        if field.default is not None and default(field) != rows[field.name.replace("_", "-")]
    ]
    assert not wrong


@pytest.mark.parametrize("section", SECTIONS)
def test_the_example_says_of_every_key_what_the_page_says(section: str) -> None:
    _, _, rest = example().partition(f"\n[{section.replace('NAME', 'alpha')}]\n")
    lines = re.findall(r"^(# )?([a-z-]+) = (.+?)  # (.+)$", rest.partition("\n\n")[0], re.MULTILINE)
    rows = rows_of_the_page(section)
    assert [(key, meaning) for _, key, _, meaning in lines] == [(key, meaning) for key, _, meaning in rows]
    for (mark, key, value, _), (_, default, _) in zip(lines, rows, strict=True):
        assert bool(mark) == (default != "required"), key
        if re.fullmatch(r"[0-9.]+|true|false", default):
            assert value == default, key


@pytest.mark.parametrize("is_whole", [False, True], ids=["as-it-is", "with-every-key"])
def test_the_example_is_a_configuration(tmp_path: Path, is_whole: bool) -> None:
    text = example().replace("/var/lib/vcsreplicator", str(tmp_path)).replace("# insecure", "# (not) insecure")
    if is_whole:
        text = re.sub(r"^# ([a-z-]+ = )", r"\1", text, flags=re.MULTILINE)
        assert set(tomllib.loads(text)["mirror"]["alpha"]) == {key for key, _, _ in rows_of_the_page("mirror.NAME")}
    (tmp_path / "x.toml").write_text(text)
    _check_sections(load(tmp_path / "x.toml"))


ALL_SECTIONS = (
    *SECTIONS.values(),
    *(settings_class(kind) for kind in DESTINATIONS),
    *(DecodeSettings, EdgeSettings, GuardianSettings, PollSettings, WorkSettings),
    *(Backoff, Patience, Subscription),
)
# Numbers with a fraction that have no unit.
RATIOS = {"factor", "jitter"}


@pytest.mark.parametrize("section", ALL_SECTIONS, ids=lambda kind: kind.__name__)
def test_a_duration_and_a_size_have_their_unit(section: type) -> None:
    for field in dataclasses.fields(section):
        kind = typing.get_type_hints(section, include_extras=True)[field.name]
        assert kind is not float or field.name in RATIOS, field.name
        assert kind is not int or not field.name.endswith("_bytes"), field.name
        assert kind != tuple[float, ...], field.name
