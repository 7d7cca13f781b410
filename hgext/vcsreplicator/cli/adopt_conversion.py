# SPDX-License-Identifier: GPL-2.0-or-later
"""The conversion of hg.mozilla.org's settings into ours.

Pure: it takes the contents of files and returns the contents of files. All that a file says is in the result: converted, or named
in a comment with the reason.
"""

import json
import os.path
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from ..words.errors import BadConfig, quote_value, visible
from .adopt_mapping import LANDING_ACCOUNTS, SECTIONS, find_counterpart

# File → section → key → value; None for a key without one.
SourceSections = Mapping[str, Mapping[str, str | None]]

PLACES = {
    "services": "/etc/vcsreplicator.toml",
    "master": "/etc/mercurial/master.hgrc",
    "mirror": "/etc/mercurial/mirror.hgrc",
}
_SECRET = "(its value is not shown)"
_TRUE_WORDS = {"1", "yes", "true", "on"}
_EXTENSIONS = "[extensions]\n*:required = yes\npushlog =\nvcsreplicator =\n"


@dataclass(slots=True)
class Conversion:
    """The conversion of hg.mozilla.org's `files` into texts of our files.

    `convert` collects in `commands` what an operator must type.
    """

    files: Mapping[str, SourceSections]
    commands: list[str] = field(default_factory=list)

    def convert(self) -> dict[str, str]:
        """Return the texts of our files by purpose.

        The purposes are `services` and, where needed, `master` and `mirror`, which are hgrc files.
        """
        found = {"services": self._write_services()}
        if any(_OF_MASTERS & set(each) for each in self.files.values()):
            found["master"] = self._write_master()
        if self._find_mirrors():
            found["mirror"] = f"{_EXTENSIONS}\n[vcsreplicator]\nrole = mirror\n"
        return found

    def comments(self) -> Iterator[str]:
        """Yield a line for each setting that has no counterpart or is not known."""
        for file, sections in self.files.items():
            for section, keys in sections.items():
                if section not in SECTIONS:
                    names = ", ".join(keys) or "empty"
                    yield f"{file}: [{section}] ({names}): keep what is not of that system, such as hooks of your own"
                    continue
                for key, value in keys.items():
                    yield from self._write_comment(file, section, key, value or "")

    def _write_comment(self, file: str, section: str, key: str, value: str) -> Iterator[str]:
        known = find_counterpart(section, key)
        # An unknown setting may be a secret too.
        setting = f"{file}: [{section}] {key} = {_SECRET if known is None or known.is_secret else value}"
        if known is None:
            yield f"{setting}: not documented, not converted"
        elif not known.ours:
            yield f"{setting}: no counterpart: {known.note}"
        elif section in _OF_MIRRORS and "consumer" not in self.files[file]:
            yield f"{setting}: not converted: this file has no section [consumer], so it belongs to no mirror"
        elif section == "pull_url_rewrites" and value != _first_url(self.files[file]):
            yield f"{setting}: not converted: a mirror has one master, whose URL goes before all wire paths"
        elif key == "hosts" and _join_servers(value) != self._find_servers():
            yield f"{setting}: not converted: all services use one log, here {self._find_servers()}"
        elif section not in _OF_MIRRORS and value != self._read_values(section)[key]:
            yield f"{setting}: not converted: another file says {self._read_values(section)[key]}, and the first counts"

    def _list_settings(self, section: str) -> Iterator[tuple[str, str]]:
        for sections in self.files.values():
            yield from ((key, value or "") for key, value in sections.get(section, {}).items())

    def _read_values(self, section: str) -> dict[str, str]:
        """Return the values of a section by key; the first file that has a key counts."""
        found: dict[str, str] = {}
        for key, value in self._list_settings(section):
            found.setdefault(key, value)
        return found

    def _find_servers(self) -> str:
        found = [value for section in _WITH_HOSTS if (value := self._read_values(section).get("hosts"))]
        return _join_servers((found or ["KAFKA:9093"])[0])

    def _find_mirrors(self) -> dict[str, SourceSections]:
        """Return the files of mirrors by the name that each gets."""
        found: dict[str, SourceSections] = {}
        for each in self.files.values():
            if "consumer" in each:
                group = each["consumer"].get("group") or "mirror"
                wanted = name = re.sub(r"[^a-z0-9]+", "-", group.lower())[:50].strip("-") or "mirror"
                while name in found:
                    name = f"{wanted}-{len(found) + 1}"
                found[name] = each
        return found

    def _find_prefix(self, theirs: str) -> str:
        """Return our wire prefix for theirs, such as `{moz}`: empty for the only one."""
        sections = ("path_rewrites", "pull_url_rewrites", "public_url_rewrites")
        known = {key.strip("/") for section in sections for key, _ in self._list_settings(section)}
        known |= {value.strip("/") for _, value in self._list_settings("replicationpathrewrites")}
        return "" if known <= {theirs.strip("/")} else re.sub(r"[{}]", "", theirs.strip("/"))

    def _convert_path(self, theirs: str) -> str:
        """Return the wire path or rule with our prefix in the place of theirs."""
        found = re.match(r"(\^?)(\\?\{[\w.-]+\\?\})(/?)", theirs)
        if found is None:
            return theirs
        prefix = self._find_prefix(found[2].replace("\\", ""))
        return f"{found[1]}{prefix}{found[3] if prefix else ''}{theirs[found.end() :]}"

    # Services

    def _write_services(self) -> str:
        url = f"kafka://{self._find_servers()}?topic-prefix=hg."
        parts = [
            f"log = {_write_toml(url)}\n"
            "# As there, without TLS. Better: `&security_protocol=SSL` in the URL (docs/log.md), and no line `insecure`.\n"
            'insecure = ["plain-text"]\n'
        ]
        if group_file := self._read_values("aggregator").get("monitor_groups_file"):
            self.commands.append(
                f"vcsreplicator roster add NAME    # for each line of {group_file}: now a mirror of the roster"
            )
        parts += self._write_relay()
        for name, sections in self._find_mirrors().items():
            parts += self._write_mirror(name, sections)
        parts.append("[aggregator]\n")
        parts += self._write_public()
        parts += self._write_pulse()
        parts += self._write_sns()
        return "\n".join(parts)

    def _write_relay(self) -> list[str]:
        roots = {
            folder.rstrip("/"): self._find_prefix(wire)
            for folder, wire in self._read_values("replicationpathrewrites").items()
        }
        if not roots:
            return []
        lines = "".join(f"{_write_toml(folder)} = {_write_toml(wire)}\n" for folder, wire in roots.items())
        relay = '[relay]\nsocket = "/run/vcsreplicator/relay.sock"\nsource = "hg://MASTER"\n'
        return [relay, f"[relay.roots]\n{lines}"]

    def _write_mirror(self, name: str, sections: SourceSections) -> list[str]:
        folders = {
            self._find_prefix(wire): _check_folder(wire, value)
            for wire, value in sections.get("path_rewrites", {}).items()
        }
        root, paths = _common_root(folders)
        text = f"[mirror.{name}]\nroot = {_write_toml(root)}\n"
        if url := _first_url(sections):
            text += f"master = {_write_toml(url.rstrip('/') + '/')}\n"
        is_backup = (sections["consumer"].get("backup") or "").lower() in _TRUE_WORDS
        if is_backup:
            text += "backup = true\n"
        if paths:
            table = "".join(f"{_write_toml(wire)} = {_write_toml(folder)}\n" for wire, folder in paths.items())
            text += f"\n[mirror.{name}.paths]\n{table}"
        rules = [
            f" --{key.partition('.')[0]} {_quote(self._convert_rule(value or ''))}"
            for key, value in sections.get("replicationrules", {}).items()
            if find_counterpart("replicationrules", key)
        ]
        self.commands.append(f"vcsreplicator roster add {name}{' --backup' if is_backup else ''}{''.join(rules)}")
        return [text]

    def _convert_rule(self, theirs: str) -> str:
        kind, _, pattern = theirs.partition(":")
        return f"{kind}:{self._convert_path(pattern)}"

    def _write_public(self) -> list[str]:
        urls = {self._find_prefix(wire): url for wire, url in self._read_values("public_url_rewrites").items()}
        ignored = [self._convert_path(prefix).lstrip("/") for prefix in self._read_values("ignore_paths")]
        if not urls and not ignored and not self._read_values("pulse") and not self._read_values("awsevents"):
            return []
        lines = "".join(f"{_write_toml(wire)} = {_write_toml(url)}\n" for wire, url in urls.items())
        policy = "" if all(ignored) else 'policy = "deny"\n'  # all of it was ignored
        return [f"[public]\nignore = {_write_toml([*filter(None, ignored)])}\n{policy}", f"[public.urls]\n{lines}"]

    def _write_pulse(self) -> list[str]:
        values = self._read_values("pulse")
        if not values:
            return []
        is_guarded = values.get("ssl", "true").lower() in _TRUE_WORDS
        vhost = values.get("virtual_host") or "/"
        port = values.get("port") or ("5671" if is_guarded else "5672")
        where = f"{quote(values.get('userid', 'guest'))}@{values.get('hostname', 'BROKER')}:{port}"
        url = f"{'amqps' if is_guarded else 'amqp'}://{where}/{'' if vhost == '/' else quote(vhost, safe='')}"
        found = []
        for stream, key in (("v1", "exchange"), ("v2", "exchange2")):
            exchange = values.get(key) or f"exchange/hgpushes/{stream}"
            text = f'[notifier.pulse-{stream}]\ntype = "pulse"\nstream = "{stream}"\nurl = {_write_toml(url)}\n'
            text += 'password = { file = "/etc/vcsreplicator/pulse.password" }\n'
            text += f'exchange = {_write_toml(exchange)}\nstart-at = "end"\n'
            if "routing_key_strip_prefix" in values:
                text += f"routing-key-strip-prefix = {_write_toml(values['routing_key_strip_prefix'])}\n"
            found.append(text)
        return found

    def _write_sns(self) -> list[str]:
        values = self._read_values("awsevents")
        if not values:
            return []
        keys = ("region", "topic_arn", "bucket", "s3_endpoint_url", "sns_endpoint_url")
        lines = "".join(f"{key.replace('_', '-')} = {_write_toml(values[key])}\n" for key in keys if values.get(key))
        return [f'[notifier.sns]\ntype = "sns"\nstart-at = "end"\n{lines}']

    # Mercurial on the master

    def _write_master(self) -> str:
        text = f"{_EXTENSIONS}\n[vcsreplicator]\nrole = master\nrelay = /run/vcsreplicator/relay.sock\n"
        if timeout := self._read_values("replicationproducer").get("acktimeout"):
            text += f"acknowledge-timeout = {_convert_milliseconds(timeout)}\n"
        if user := self._read_values("replication").get("unfiltereduser"):
            text += f"snapshot-allow = {_write_line(user)}\n"
        text += "\n[vcsreplicator-roots]\n"
        for folder, wire in self._read_values("replicationpathrewrites").items():
            text += f"{_write_line(folder.rstrip('/'))} = {_write_line(self._find_prefix(wire)) or '.'}\n"
        given = self._read_values("pushlog")
        accounts = {**LANDING_ACCOUNTS, **{key: given[key] for key in LANDING_ACCOUNTS if key in given}}
        text += f"\n[pushlog]\nlandingusers = {_write_line(', '.join(filter(None, accounts.values())))}\n"
        return text + "".join(f"{key} = {_write_line(value)}\n" for key, value in given.items() if key in _KEPT_KEYS)


_WITH_HOSTS = ("replicationproducer", "consumer", "aggregator", "pulseconsumer", "snsconsumer")
_OF_MASTERS = frozenset({"replicationproducer", "replicationpathrewrites", "pushlog", "replication"})
# Sections of one mirror each, in the file with its section [consumer].
_OF_MIRRORS = frozenset({"consumer", "path_rewrites", "pull_url_rewrites", "replicationrules"})
_KEPT_KEYS = ("userprefix", "remoteuserprefix", "timeoutro", "timeoutrw", "retrydelayms")


def _join_servers(hosts: str) -> str:
    return ",".join(part.strip() for part in hosts.split(","))


def _first_url(sections: SourceSections) -> str | None:
    return next((url for url in sections.get("pull_url_rewrites", {}).values() if url), None)


def _convert_milliseconds(milliseconds: str) -> str:
    if not milliseconds.isascii() or not milliseconds.isdigit() or len(milliseconds) > 9:
        raise BadConfig(f"[replicationproducer] acktimeout: expected milliseconds, got {quote_value(milliseconds)}")
    return f"{int(milliseconds) / 1000:.10g}"


def _check_folder(wire: str, value: str | None) -> str:
    if not os.path.isabs(value or ""):
        raise BadConfig(f"[path_rewrites] {wire}: expected an absolute path, got {quote_value(value)}")
    return os.path.normpath(value or "")


def _common_root(folders: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return a mirror's root folder, and the folders below it by wire prefix."""
    if not folders:
        return "/repos", {}
    if list(folders) == [""]:
        return folders[""], {}
    root = os.path.commonpath([os.path.dirname(folder) for folder in folders.values()])
    return root, {wire: os.path.relpath(folder, root) for wire, folder in folders.items()}


def _write_toml(value: str | list[str]) -> str:
    """Write a value of TOML, which knows no surrogates."""
    written = json.dumps(value, ensure_ascii=False)
    return "".join(letter if letter.isprintable() else f"\\U{ord(letter):08x}" for letter in written)


def _write_line(value: str) -> str:
    """Write a value of an hgrc in one line, so that none of it is a section or key."""
    return visible(" ".join(value.split("\n")))


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
