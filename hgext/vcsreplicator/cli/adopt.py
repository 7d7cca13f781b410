# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator adopt`: converts the settings of hg.mozilla.org's system."""

import configparser
import os
import re

import click

from ..words.errors import BadConfig, Refused, visible
from .adopt_conversion import PLACES, Conversion, SourceSections


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--output", metavar="FOLDER", help="Write the files into this folder, which must not have any of them yet."
)
def command(files: tuple[str, ...], output: str | None) -> None:
    """Convert FILEs of hg.mozilla.org's system into files of vcsreplicator.

    FILEs are each vcsreplicator.ini, the files of the notifiers, and the hgrc of the master. Prints the new files, then the
    commands to run. A setting without a counterpart becomes a comment with the reason; nothing is left out. Secrets are not
    printed. docs/adopt.md has the table, and says how both systems run side by side.
    """
    conversion = Conversion({file: _read_file(file) for file in files})
    texts = conversion.convert()
    for comment in conversion.comments():
        texts["services"] += f"# {visible(comment)}\n"
    if output is not None:
        _write_files(output, texts)
    for name, text in texts.items() if output is None else ():
        click.echo(f"# ---- {PLACES[name]} ----\n{text}")
    for line in conversion.commands:
        click.echo(f"# then type: {visible(line)}")


def _read_file(file: str) -> SourceSections:
    """Read sections of INI or hgrc; raise BadConfig if it is neither."""
    parser = configparser.RawConfigParser(allow_no_value=True, strict=False, default_section="\0")
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        with open(file, encoding="utf-8-sig") as opened:
            lines = opened.read().splitlines(keepends=True)
        directives = [line.strip() for line in lines if line.startswith("%")]
        parser.read_string("".join(line for line in lines if not line.startswith("%")), source=file)
    except OSError as error:
        raise BadConfig(f"{file}: cannot be read: {error.strerror}") from error
    except (configparser.Error, UnicodeDecodeError) as error:
        reason = visible(str(error).splitlines()[0])
        raise BadConfig(f"{file}: expected sections of `key = value`: {reason}") from error
    found: dict[str, dict[str, str | None]] = {
        section: {key: _hide_password(value) for key, value in parser.items(section)} for section in parser.sections()
    }
    if directives:
        found["directives"] = {**found.get("directives", {}), **dict.fromkeys(directives)}
    return found


def _hide_password(value: str | None) -> str | None:
    """Replace the password in a URL, because our files may not have one either."""
    return value and re.sub(r"(://[^/\s:@]*:)[^/\s]*@", r"\1PASSWORD@", value)


def _write_files(folder: str, texts: dict[str, str]) -> None:
    places = {name: os.path.join(folder, os.path.basename(PLACES[name])) for name in texts}
    if there := [place for place in places.values() if os.path.lexists(place)]:
        raise Refused(f"{there[0]} already exists; name another folder")
    try:
        os.makedirs(folder, exist_ok=True)
        for name, place in places.items():
            with open(place, "x", encoding="utf-8") as file:
                file.write(texts[name])
            click.echo(place)
    except OSError as error:
        raise BadConfig(f"--output: {error.filename or folder}: cannot be written: {error.strerror}") from error
