# SPDX-License-Identifier: GPL-2.0-or-later
"""The part of a repository's hgrc that is replicated.

It consists of texts and switches, which cannot run, load or open anything. Hooks, extensions, aliases, paths, templates and folders
stay on the master. Rules about who may read, and what clients see, are replicated, those about who may push are not: a mirror
refuses pushes. Rules about readers arrive exactly, or the mirrors' repository is closed to all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from mercurial.localrepo import localrepository

from pushlog.store import disk

# Compiled at first use, never in a push.
_KEYS = {
    "web": (
        r"(name|description|contact|hidden|labels|descend|collapse|allow-archive|allow_archive|allow_read|deny_read|"
        r"allow-read|deny-read|allow-pull|allowpull|allowgz|allowbz2|allowzip|shortchanges|maxchanges|maxfiles|"
        r"maxshortchanges|stripes|encoding|view)\Z"
    ),
    "server": r"view\Z",
    "phases": r"publish\Z",
    "experimental": r"(evolution(\.[a-z.-]{1,60})?|topic\.server-gate-topic-changesets)\Z",
}
# Keys of [web] that say who may read.
_ACCESS = ("allow_read", "deny_read")
# Characters of a value.
_VALUE_LIMIT = 16 * 1024
_HEAD = "# written by replication; changes are overwritten\n"

Sections = Mapping[str, Mapping[str, str]]


def allowed(sections: Sections) -> dict[str, dict[str, str]]:
    """Return the part of a configuration that is replicated."""
    kept: dict[str, dict[str, str]] = {}
    is_closed = False
    for section, items in sections.items():
        keys = _KEYS.get(section)
        for key, value in items.items():
            if keys is None or not re.match(keys, key):
                continue
            if _survives_file(value):
                kept.setdefault(section, {})[key] = value
            elif section == "web" and key in _ACCESS:
                is_closed = True
    if is_closed:
        kept.setdefault("web", {})["deny_read"] = "*"
    return kept


def rendered(sections: Sections) -> str:
    """Return the hgrc file with the allowed part of `sections`."""
    parts = [_HEAD]
    for section, items in sorted(allowed(sections).items()):
        parts.append(f"[{section}]\n")
        parts += ["{} = {}\n".format(key, value.replace("\n", "\n ")) for key, value in sorted(items.items())]
    return "".join(parts)


def _survives_file(value: str) -> bool:
    """Return whether Mercurial would read every line of the value back from a file.

    Also False for a value longer than `_VALUE_LIMIT`.
    """
    first, *more = value.split("\n")
    is_whole = all(line.isprintable() and line == line.strip() for line in (first, *more))
    return is_whole and all(more) and len(value) <= _VALUE_LIMIT


def put(repo: localrepository, sections: Sections) -> None:
    """Write the allowed part of `sections` as the repository's hgrc.

    Without sections, remove the hgrc. The change is durable on return.
    """
    text = rendered(sections).encode("utf-8", "replace")
    if not sections:
        if repo.vfs.exists(b"hgrc"):
            repo.vfs.tryunlink(b"hgrc")
            disk.sync_folder(repo.vfs.join(b""))
    elif repo.vfs.tryread(b"hgrc") != text:
        disk.replace(repo.vfs, b"hgrc", text).close()
