# SPDX-License-Identifier: GPL-2.0-or-later
"""The notifier's part of the TOML file.

`[public]`, `[notifier]` and a `[notifier.NAME]` for each destination.

[notifier]
state = "/var/lib/vcsreplicator/notifier.db"    requests of operators and their results
takeover-after = 10                             seconds of another notifier's silence

[notifier.pulse-v2]
type = "pulse"                                  which destination; the other keys are its own (docs/destinations.md)
"""

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, cast
from urllib.parse import unquote

from hgext.vcsreplicator.words import shape
from hgext.vcsreplicator.words.errors import BadConfig, MalformedEvent, quote_value
from hgext.vcsreplicator.words.shape import Seconds, within

from ..delivery.destination import DESTINATIONS, DestinationSettings, check_common, settings_class
from ..messages.public import PublicSettings

DEFAULT_STATE = "/var/lib/vcsreplicator/notifier.db"

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,60}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class _OwnKeys:
    """The keys of `[notifier]` itself."""

    state: str = DEFAULT_STATE
    takeover_after: Seconds = 10.0

    def __post_init__(self) -> None:
        shape.absolute(self, "state")
        within(self, takeover_after=(0.01, 3600))


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifierSettings(_OwnKeys):
    """`destinations` by name, `public`, and the path of the `state` database.

    A notifier that stands by takes over after `takeover_after` seconds without a heartbeat, and at least twice their interval.
    """

    public: PublicSettings
    destinations: Mapping[str, DestinationSettings]


def read(tables: Mapping[str, Any], file: str) -> NotifierSettings:
    """Read the tables `public` and `notifier`; BadConfig names the file and the key."""
    section = dict(_require_mapping(tables.get("notifier", {}), f"{file}: notifier"))
    keys = {shape.hyphened(member.name) for member in fields(_OwnKeys)} & section.keys()
    own = _read_section(_OwnKeys, {key: section.pop(key) for key in keys}, f"{file}: notifier")
    if "public" not in tables:
        raise BadConfig(
            f"{file}: section [public] is missing: it says which repositories may be announced, and their URLs"
        )
    public = _read_section(PublicSettings, tables["public"], f"{file}: public")
    found = {name: _read_destination(name, table, tables, file, own.state) for name, table in section.items()}
    _check_files(found, own.state, str(tables.get("log", "")), file)
    return NotifierSettings(public=public, destinations=found, **asdict(own))


def check_secrets(settings: NotifierSettings, file: str) -> None:
    """Raise BadConfig for a secret that can be read and is of no use."""
    for name, destination in settings.destinations.items():
        check = getattr(destination, "check_secrets", None)
        if check is not None:
            try:
                check()
            except BadConfig as error:
                raise BadConfig(f"{file}: notifier.{name}.{error}") from error


# Settings that name a file that only its destination may write.
_OWN_FILE_KEYS = ("database", "file")


def _check_files(destinations: Mapping[str, DestinationSettings], state: str, log: str, file: str) -> None:
    """Raise BadConfig if destinations, the state or the log share a file.

    Two destinations that write one file would cut or deliver each other's lines.
    """
    seen = {os.path.realpath(state): "notifier.state"}
    log_file = os.path.realpath(unquote(log.removeprefix("sqlite://")))
    if log.startswith("sqlite:///") and seen.setdefault(log_file, "log") != "log":
        raise BadConfig(f"{file}: notifier.state: expected a file of its own, log has {state} too")
    for name, settings in destinations.items():
        for key in _OWN_FILE_KEYS:
            path = getattr(settings, key, None)
            if path is not None:
                where = seen.setdefault(os.path.realpath(path), f"notifier.{name}.{key}")
                if where != f"notifier.{name}.{key}":
                    raise BadConfig(
                        f"{file}: notifier.{name}.{key}: expected a file of its own, {where} has {path} too"
                    )


# Members of a destination's settings that are not keys of its own → where they come from.
_GIVEN = {"state": "notifier.state", "log": "log", "decoder": "section [decode]"}


def _read_destination(name: str, table: Any, tables: Mapping[str, Any], file: str, state: str) -> DestinationSettings:
    where = f"{file}: notifier.{name}"
    if not _NAME.match(name):
        raise BadConfig(f"{where}: expected a name of lower-case letters, digits and hyphens")
    keys = dict(_require_mapping(table, where))
    kind = keys.pop("type", None)
    if not isinstance(kind, str) or kind not in DESTINATIONS:
        raise BadConfig(f"{where}.type: expected one of {', '.join(DESTINATIONS)}, got {quote_value(kind)}")
    settings = settings_class(kind)
    members = {field.name for field in fields(cast(Any, settings))}
    for member in sorted(members & _GIVEN.keys() & keys.keys()):
        raise BadConfig(f"{where}.{member}: unknown key, expected {_GIVEN[member]}")
    if "state" in members:
        keys["state"] = state
    found: DestinationSettings = _read_section(settings, keys, where)
    if "decoder" in members:
        found = replace(cast(Any, found), log=str(tables.get("log", "")), decoder=_read_decoder(tables, where, file))
    try:
        check_common(found)
    except ValueError as error:
        raise BadConfig(f"{where}.{error}") from error
    return found


def _read_decoder(tables: Mapping[str, Any], where: str, file: str) -> Any:
    """Read the section of the decoder, to whose input a destination writes."""
    from ..services.decode.settings import DecodeSettings

    if "decode" not in tables:
        raise BadConfig(f"{where}: expected a section [decode] too, whose input gets the messages")
    return _read_section(DecodeSettings, tables["decode"], f"{file}: decode")


def _read_section(kind: type[Any], table: Any, where: str) -> Any:
    try:
        return shape.read(kind, _underscore_keys(_require_mapping(table, where)))
    except MalformedEvent as error:
        key, _, expected = str(error).removeprefix(kind.__name__).partition(":")
        raise BadConfig(f"{where}{shape.hyphened(f'{key}:{expected}')}") from error
    except ValueError as error:
        raise BadConfig(f"{where}.{error}") from error


def _require_mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadConfig(f"{where}: expected a section, got {quote_value(value)}")
    return value


_FREE = {"urls", "headers", "outputs"}
_NAMED = {"subscriptions"}


def _underscore_keys(value: Any, name: str = "") -> Any:
    """Return a value whose keys are named as members; free mappings stay as they are."""
    if name in _FREE or not isinstance(value, Mapping | list):
        return value
    if isinstance(value, list):
        return [_underscore_keys(item) for item in value]
    if name in _NAMED:
        return {key: _underscore_keys(item) for key, item in value.items()}
    return {key.replace("-", "_"): _underscore_keys(item, key) for key, item in value.items()}
