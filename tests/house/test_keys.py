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

import pushlog
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.cli.config import _check_sections
from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.config import load
from hgext.vcsreplicator.hg.settings import KEYS
from hgext.vcsreplicator.mirror import MirrorSettings
from hgext.vcsreplicator.mirror.jobs.bootstrap import BootstrapSettings
from hgext.vcsreplicator.mirror.jobs.verify import VerifySettings
from hgext.vcsreplicator.relay.settings import RelaySettings
from hgext.vcsreplicator.status.health import HealthSettings
from hgext.vcsreplicator.words.retry import Backoff
from notifier.delivery.destination import DESTINATIONS, settings_class
from notifier.delivery.window import Patience
from notifier.destinations.webhook.subscription import Subscription
from notifier.messages.public import PublicSettings
from notifier.publishing.settings import NotifierSettings
from notifier.services.decode.settings import DecodeSettings
from notifier.services.edge.settings import EdgeSettings
from notifier.services.guardian.settings import GuardianSettings
from notifier.services.poll.settings import PollSettings
from notifier.services.work.settings import WorkSettings
from pushlog.settings import LANDING_OPTIONS
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


def shown(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def test_every_key_of_the_pushlog_is_on_its_page_with_its_default() -> None:
    page = (CHECKOUT / "docs/pushlog.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \| ([^|]+) \| [^|]+ \|$", page, re.MULTILINE)
    expected = {
        name.decode(): "none" if item.default in (None, list) else shown(item.default)
        for name, item in pushlog.configtable[b"pushlog"].items()
        if name not in LANDING_OPTIONS
    }
    assert dict(rows) == expected


def test_every_key_of_a_master_and_mirror_is_on_a_page() -> None:
    """The rows of most say which of their values is the default."""
    rows = re.findall(r"^\| `([a-z-]+)` \| .+ \|$", (CHECKOUT / "docs/push.md").read_text(), re.MULTILINE)
    assert {key.decode() for key in KEYS} <= set(rows)


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


# Pages whose sections mark each key.
MARKED = ("destinations", "hg-push-services", "edge-decoder", "guardian")
KINDS = {
    "public": PublicSettings,
    "notifier": NotifierSettings,
    "poll": PollSettings,
    "work": WorkSettings,
    "edge": EdgeSettings,
    "decode": DecodeSettings,
    "guardian": GuardianSettings,
}


def kind_of(section: str, tables: dict[str, Any]) -> type | None:
    """The settings of a section; None where keys are names."""
    parts = section.split(".")
    if section in KINDS:
        return KINDS[section]
    if parts[-1] == "patience":
        return Patience
    if len(parts) == 4:
        return Subscription
    return settings_class(tables["notifier"][parts[1]]["type"]) if parts[0] == "notifier" else None


def mark(kind: type, key: str, value: Any) -> str:
    """What the comment at a key must begin with."""
    if key == "type":
        return "required"
    [field] = [each for each in dataclasses.fields(kind) if each.name.replace("_", "-") == key]
    if field.default is field.default_factory is dataclasses.MISSING:
        return "required"
    given = field.default if field.default is not dataclasses.MISSING else field.default_factory()
    if dataclasses.is_dataclass(given) and not isinstance(given, type):
        given = dataclasses.asdict(given)
    if isinstance(given, tuple):
        given = list(given)
    return "default" if given == value else "example"


def marked_keys(page: str) -> list[tuple[type, str, Any, str]]:
    """Settings, key, value and comment of each key that the sections of a page set."""
    found = []
    text = (CHECKOUT / "docs" / f"{page}.md").read_text()
    for block in re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        tables, section = tomllib.loads(block), ""
        for line in block.splitlines():
            if heading := re.match(r"\[(.+?)\]", line):
                section = heading[1]
            elif section and (kind := kind_of(section, tables)) and (key := re.match(r"[a-z][a-z-]*(?= = )", line)):
                at: Any = tables
                for part in section.split("."):
                    at = at[part]
                found.append((kind, key[0], at[key[0]], line.rpartition(" # ")[2]))
    return found


@pytest.mark.parametrize("page", MARKED)
def test_a_page_marks_what_is_required_and_what_is_a_default(page: str) -> None:
    found = marked_keys(page)
    assert found
    wrong = [
        f"{kind.__name__}: {key}: {needed}, not {comment!r}"
        for kind, key, value, comment in found
        if re.split("[; ]", comment)[0] != (needed := mark(kind, key, value))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("kind", "page"),
    [
        (PollSettings, "hg-push-services"),
        (WorkSettings, "hg-push-services"),
        (EdgeSettings, "edge-decoder"),
        (GuardianSettings, "guardian"),
    ],
)
def test_every_required_key_of_a_section_is_on_its_page(kind: type, page: str) -> None:
    needed = {
        field.name.replace("_", "-")
        for field in dataclasses.fields(kind)
        if field.default is field.default_factory is dataclasses.MISSING
    }
    assert needed == {
        key for of, key, value, _ in marked_keys(page) if of is kind and mark(of, key, value) == "required"
    }


ALL_SECTIONS = (
    *SECTIONS.values(),
    *(settings_class(kind) for kind in DESTINATIONS),
    *(DecodeSettings, EdgeSettings, GuardianSettings, PollSettings, WorkSettings),
    *(Backoff, Patience, Subscription),
)
# Numbers with a fraction that have no unit.
RATIOS = {"factor", "jitter", "share", "check_share"}


@pytest.mark.parametrize("section", ALL_SECTIONS, ids=lambda kind: kind.__name__)
def test_a_duration_and_a_size_have_their_unit(section: type) -> None:
    for field in dataclasses.fields(section):
        kind = typing.get_type_hints(section, include_extras=True)[field.name]
        assert kind is not float or field.name in RATIOS, field.name
        assert kind is not int or not field.name.endswith("_bytes"), field.name
        assert kind != tuple[float, ...], field.name
