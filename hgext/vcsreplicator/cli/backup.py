# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator backup`: copies what an installation cannot make again."""

import contextlib
import enum
import fcntl
import os
import shlex
import shutil
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence

import click

from ..config import Config
from ..log.blobs import sync_folder
from ..log.sqlite.copying import read_ends
from ..words.clock import SystemClock, format_duration
from ..words.errors import BadConfig, Refused, counted
from ..words.version import VERSION
from .backup_contents import USUAL_HGRC, Part, PartKind, list_left_out, list_parts
from .backup_copy import PARTS, CopyWriter, Manifest, as_data, check_files, read_manifest
from .display import print_json
from .options import relay_of, with_config, with_json


class Repositories(enum.StrEnum):
    """What is done about the repositories of the master."""

    NONE = "none"
    COPY = "copy"
    PRINT = "print"


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path())
@click.option("--check", "is_check", is_flag=True, help="Verify the copy in DIR, and say what a restore would lose.")
@click.option(
    "--repositories",
    type=click.Choice([each.value for each in Repositories]),
    help="Copy them too, each under its lock; print commands that do; or leave them out. Required for a master.",
)
@click.option("--secrets", is_flag=True, help="Copy keys and files of passwords, too.")
@click.option("--hgrc", "files", multiple=True, metavar="FILE", help="An hgrc to copy. Default: those of `setup`.")
@with_json
@with_config
def command(
    config: Config,
    folder: str,
    is_check: bool,
    repositories: str | None,
    secrets: bool,
    files: Sequence[str],
    as_json: bool,
) -> None:
    """Back up what this machine cannot make again into the new folder DIR, while services run.

    The log is copied before the repositories, so that after a restore the relay sends what the log lacks. If you interrupt
    the command, run it again. Restore with `vcsreplicator restore DIR`.
    """
    folder = os.path.abspath(folder)
    if is_check:
        _check(config, folder, as_json=as_json)
        return
    if repositories is None and "relay" in config.tables:
        raise Refused("--repositories: expected copy, print or none, because this file has a master")
    files = files or tuple(filter(os.path.exists, USUAL_HGRC))
    with_roots = repositories == Repositories.COPY
    parts = tuple(list_parts(config, files, with_roots=with_roots, with_secrets=secrets))
    left_out = tuple(list_left_out(config, with_roots=with_roots, with_secrets=secrets))
    _refuse_inside(folder, parts)
    _refuse_other_owner(parts)
    made, failed = _make(folder, parts, left_out)
    if as_json:
        print_json(as_data(made))
    else:
        click.echo(f"{folder}: copied {counted(made.files, 'file')} and folders, {made.size} bytes")
        for text in made.left_out:
            click.echo(f"not in it: {text}")
    if repositories == Repositories.PRINT:
        for line in _print_commands(config, folder):
            click.echo(line, err=as_json)
    if failed:
        raise Refused(
            f"{folder}: lacks what could not be copied, which is named above; remove the cause, then back up again"
        )


def _make(folder: str, parts: Sequence[Part], left_out: tuple[str, ...]) -> tuple[Manifest, bool]:
    """Make the copy beside its place, and give it its name once it is whole on the disk.

    Also return whether anything below a root could not be copied.
    """
    begun = SystemClock().now()
    with _new_partial(folder) as partial, contextlib.closing(CopyWriter(partial)) as copy:
        found = []
        for part in parts:
            if copy.add(part):
                found.append(part)
            elif part.kind is PartKind.ROOT or part.key in ("log", "configuration"):
                raise Refused(f"{part.path}: is missing, so nothing was copied; restore it, or correct {part.key}")
            else:
                left_out += (f"{part.key}: {part.path} is missing",)
        made = copy.finish(
            time=begun,
            versions={
                "vcsreplicator": VERSION,
                "python": sys.version.split()[0],
                "sqlite": sqlite3.sqlite_version,
            },
            parts=tuple(found),
            left_out=(*left_out, *copy.left_out),
        )
        os.rename(partial, folder)
        sync_folder(os.path.dirname(folder))
    return made, bool(copy.left_out)


@contextlib.contextmanager
def _new_partial(folder: str) -> Iterator[str]:
    """Make a folder for a copy, in place of the folder that a killed run left; remove it if the block fails.

    Raises Refused if `folder` is there, or another process makes it now.
    """
    if os.path.lexists(folder):
        raise Refused(f"{folder}: already exists; expected a new name, for example with the date in it")
    if not os.path.isdir(os.path.dirname(folder)):
        raise Refused(f"{os.path.dirname(folder)}: expected a folder, in which {os.path.basename(folder)} is made")
    partial = f"{folder}.partial"
    lock = os.open(f"{folder}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Refused(f"{partial}: another backup is writing it; wait for its end") from error
        if os.path.lexists(partial):
            shutil.rmtree(partial)
        os.mkdir(partial, 0o700)
        try:
            yield partial
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        os.unlink(f"{folder}.lock")
    finally:
        os.close(lock)


def _refuse_inside(folder: str, parts: Sequence[Part]) -> None:
    """Raise Refused if the copy would be part of what is copied."""
    real = os.path.realpath(folder)
    for part in parts:
        source = os.path.realpath(part.path)
        if os.path.commonpath([real, source]) == source:
            raise Refused(f"{folder}: lies below {part.path}, which is copied; expected a folder elsewhere")


def _refuse_other_owner(parts: Sequence[Part]) -> None:
    """Raise Refused if the repositories are another user's, who could lead this process to any file by a link."""
    from ..log.ownership import name_owner

    for part in parts:
        if part.kind is PartKind.ROOT and os.path.exists(part.path) and (owner := name_owner(part.path)):
            raise Refused(f"{part.path}: belongs to another user{owner}")


def _print_commands(config: Config, folder: str) -> Iterator[str]:
    """Yield commands that copy the repositories now, after the log."""
    relay = relay_of(config)
    yield "# Now, while nothing can push, and never from a time before the copy above:"
    for number, root in enumerate(relay.roots if relay else ()):
        yield f"cp -aT {shlex.quote(root)} {shlex.quote(f'{folder}-repositories-{number}')}"


def _check(config: Config, folder: str, *, as_json: bool) -> None:
    """Verify a copy, and say what a restore of it would lose now; raise BadConfig for damage."""
    manifest = read_manifest(folder)
    check_files(folder, manifest)
    lost = _find_lost(config, folder, manifest)
    if as_json:
        print_json(as_data(manifest) | {"lost": lost})
        return
    age = format_duration(SystemClock().now() - manifest.time)
    day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(manifest.time))
    click.echo(f"{folder}: complete, begun {day}, {age} ago, {counted(manifest.files, 'file')} and folders")
    if lost is None:
        click.echo("a restore loses what came later; there is no embedded log here that says how much")
    else:
        counts = ", ".join(f"{count} of {topic}" for topic, count in lost.items()) or "no record"
        click.echo(
            f"a restore would remove from the log: {counts}; the relay then sends again the events that outboxes keep"
        )
    if any(part.kind is PartKind.ROOT for part in manifest.parts):
        click.echo(
            "a restore would remove all pushes since then from the repositories; only mirrors and clones may still have them"
        )
    for text in manifest.left_out:
        click.echo(f"not in it: {text}")


def _find_lost(config: Config, folder: str, manifest: Manifest) -> dict[str, int] | None:
    """Count the records of each topic that the log has and its copy lacks; None if one of them is not there."""
    part = next((part for part in manifest.parts if part.key == "log"), None)
    if part is None:
        return None
    copied = read_ends(os.path.join(folder, PARTS, part.name), is_copy=True)
    present = next((each for each in list_parts(config, (), with_roots=False, with_secrets=False)), None)
    if present is None or present.key != "log":
        return None
    try:
        ends = read_ends(present.path, is_copy=False)
    except BadConfig:  # it is damaged or gone, which a restore is for
        return None
    return {topic: end - copied.get(topic, 0) for topic, end in ends.items() if end > copied.get(topic, 0)}
