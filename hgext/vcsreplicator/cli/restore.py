# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator restore`: puts a copy of `vcsreplicator backup` in place."""

import contextlib
import fcntl
import grp
import os
import pwd
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from ..config import Config, load
from ..log.ownership import make_folders
from ..log.sqlite.copying import refuse_open
from ..outbox.folder import open_below, open_regular
from ..words.errors import Refused, visible
from .backup_contents import USUAL_HGRC, Part, PartKind, list_parts
from .backup_copy import PARTS, CopiedEntry, Manifest, check_files, copy_file, hash_file, read_entries, read_manifest
from .options import mirror_settings, relay_of, with_config_file

# In a root whose restore has begun and not ended; no scan looks into a name with a dot.
_UNFINISHED = ".vcsreplicator-restoring"
_NEXT = (
    "next: start all services, and web and SSH servers; the relay sends again what the log lacks",
    "then, half a minute later: vcsreplicator check, which names repositories in which mirrors are ahead of the master",
    "then: vcsreplicator verify, which must find all repositories equal",
)


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path())
@click.option("--replace", is_flag=True, help="Replace files that are there and differ; never repositories.")
@click.option("--hgrc", "files", multiple=True, metavar="FILE", help="An hgrc to restore. Default: those of `setup`.")
@with_config_file
def command(file: str, folder: str, replace: bool, files: Sequence[str]) -> None:
    """Restore the copy in DIR that `vcsreplicator backup` made, with owners and modes.

    Stop all services and servers first. Each part goes where the services' file of this machine says; without such a
    file, where it was. Restore only a copy that no stranger could change, because its files make services run programs.
    If you interrupt the command, run it again.
    """
    folder = os.path.abspath(folder)
    manifest = read_manifest(folder)
    check_files(folder, manifest)
    copied = os.path.join(folder, PARTS, "configuration")
    config = load(file if os.path.exists(file) else copied)
    places = _find_places(config, manifest, file, files or USUAL_HGRC)
    with _stopped(config):
        _refuse_present(folder, manifest, places, replace=replace)
        for part in places.values():
            if part.kind is PartKind.ROOT:
                make_folders(part.path)
                _mark_begun(part.path, manifest)
        for entry in read_entries(folder, manifest):
            if owning := places.get(entry.name.partition("/")[0]):
                _put(os.path.join(folder, PARTS, entry.name), owning, entry, manifest)
        os.sync()
        for part in places.values():
            if part.kind is PartKind.ROOT:
                Path(part.path, _UNFINISHED).unlink(missing_ok=True)
    for part in manifest.parts:
        if part.name in places:
            click.echo(f"{part.key}: {places[part.name].path}")
        elif part.key.startswith("hgrc."):
            click.echo(f"{part.key}: not restored; to restore it, add --hgrc {visible(shlex.quote(part.path))}")
        else:
            click.echo(f"{part.key}: not restored, because {file} is there and does not name a place for it")
    for text in (*(f"not in the copy: {each}" for each in manifest.left_out), *_NEXT):
        click.echo(text)


def _find_places(config: Config, manifest: Manifest, file: str, hgrc: Sequence[str]) -> Mapping[str, Part]:
    """Return by the name of its copy where each part goes here."""
    here = {part.key: part for part in list_parts(config, hgrc, with_roots=True, with_secrets=True)}
    here["configuration"] = Part(key="configuration", path=os.path.abspath(file), kind=PartKind.FILE)
    if os.path.exists(file):  # it says where all else goes
        del here["configuration"]
    return {part.name: here[part.key] for part in manifest.parts if part.key in here}


@contextlib.contextmanager
def _stopped(config: Config) -> Iterator[None]:
    """Keep services from starting within the block; raise Refused if one runs."""
    with contextlib.ExitStack() as held:
        for lock in _list_locks(config):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                opened = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
                held.callback(os.close, opened)
                try:
                    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise Refused(f"{lock}: a service holds it; stop all services first") from error
        yield


def _list_locks(config: Config) -> Iterator[str]:
    """Yield the files that services of this machine lock while they run."""
    from notifier.publishing.settings import DEFAULT_STATE

    if relay := relay_of(config):
        yield f"{relay.socket}.lock"
    for name in config.names("mirror") if "mirror" in config.tables else ():
        yield os.path.join(mirror_settings(config, name).folder, "lock")
    if "notifier" in config.tables:
        yield f"{config.tables['notifier'].get('state', DEFAULT_STATE)}.lock"
    if socket := config.tables.get("dashboard", {}).get("socket"):
        yield f"{socket}.lock"


def _refuse_present(folder: str, manifest: Manifest, places: Mapping[str, Part], *, replace: bool) -> None:
    """Raise Refused for what is in the way, for a database in use, and for owners that are unknown here.

    What an earlier run put in place is not in the way.
    """
    for part in places.values():
        if part.kind is PartKind.ROOT and os.path.isdir(part.path):
            names = [name for name in os.listdir(part.path) if name != _UNFINISHED]
            if names and not _is_unfinished(part.path, manifest):
                raise Refused(
                    f"{part.path}: holds {names[0]}; move what is in it to a place outside all roots: restore replaces no "
                    "repositories"
                )
    for entry in read_entries(folder, manifest):
        _find_owner(entry)
        found = places.get(entry.name)
        if found is None or found.kind in (PartKind.ROOT, PartKind.BLOBS) or not os.path.lexists(found.path):
            continue
        if _is_there(found.path, entry) and not os.path.exists(f"{found.path}-wal"):
            continue
        if found.kind is PartKind.DATABASE:
            refuse_open(found.path)
        if not replace:
            raise Refused(f"{found.path}: exists, and differs from the copy; add --replace to replace it")


def _mark_begun(root: str, manifest: Manifest) -> None:
    """Note in a root, before all else, that this user's restore of this copy began; raise Refused if that fails."""
    if _is_unfinished(root, manifest):
        return
    place = os.path.join(root, _UNFINISHED)
    try:
        Path(place).unlink(missing_ok=True)
        made = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(made, "w", encoding="ascii") as file:
            file.write(manifest.sha256)
    except OSError as error:
        raise Refused(f"{place}: {error.strerror}; remove it, then restore again") from error


def _is_unfinished(root: str, manifest: Manifest) -> bool:
    """Return whether this user's restore of this copy began here.

    Accounts may write there, too, and give any file of this user the name of the mark: no other has the hash of the manifest.
    """
    try:
        with open(os.path.join(root, _UNFINISHED), encoding="ascii", errors="replace", opener=open_regular) as file:
            is_own = os.fstat(file.fileno()).st_uid == os.geteuid()
            return is_own and file.read(len(manifest.sha256) + 1) == manifest.sha256
    except OSError:
        return False


def _is_there(path: str, entry: CopiedEntry) -> bool:
    try:
        return hash_file(path) == (entry.size, entry.sha256)
    except OSError:
        return False


def _put(source: str, part: Part, entry: CopiedEntry, manifest: Manifest) -> None:
    """Put an entry in place, whole or not at all; what is there already only gets owner and mode.

    Raises Refused where that fails, also for a link in place of a folder: accounts may write in folders that have their rights.
    """
    above, name = os.path.split(part.path)
    _, *inner = entry.name.split("/")
    *folders, last = (name, *inner)
    if not os.path.isdir(above):
        make_folders(above)
    try:
        with open_below(above, folders) as folder:
            _put_below(f"/proc/self/fd/{folder}/{last}", source, entry, part.kind, _name_unfinished(manifest))
    except OSError as error:
        place = os.path.join(part.path, *inner)
        raise Refused(f"{place}: {error.strerror}; remove the cause, then restore again") from error


def _name_unfinished(manifest: Manifest) -> str:
    """Return the name of a file until it is whole: the same in each run, short, and of no file in this copy."""
    return f".restoring-{manifest.sha256[:32]}"


def _put_below(target: str, source: str, entry: CopiedEntry, kind: PartKind, unfinished: str) -> None:
    """Put an entry into a folder that is open, by its path in /proc; it is `unfinished` until it is whole."""
    if entry.sha256 is None and entry.target is None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(target, 0o700)
        _give(target, entry)
        return
    if entry.sha256 is not None and _is_there(target, entry):
        _give(target, entry)
        return
    made = os.path.join(os.path.dirname(target), unfinished)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(made)
    if entry.target is not None:
        os.symlink(entry.target, made)
    else:
        copy_file(source, made)
    _give(made, entry)
    if kind is PartKind.DATABASE:  # SQLite would apply the journal of the old database to the copy
        for ending in ("-wal", "-shm", "-journal"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(target + ending)
    os.replace(made, target)


def _give(path: str, entry: CopiedEntry) -> None:
    """Give owner and mode; only root can give files to other users. Raises OSError, also for a link in place of a file."""
    owner = _find_owner(entry) if os.geteuid() == 0 else (-1, -1)
    if entry.target is not None:
        os.chown(path, *owner, follow_symlinks=False)
        return
    is_folder = os.O_DIRECTORY if entry.sha256 is None else 0
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | is_folder)
    try:
        os.fchown(file, *owner)
        os.fchmod(file, entry.mode if is_folder else entry.mode & 0o777)
    finally:
        os.close(file)


def _find_owner(entry: CopiedEntry) -> tuple[int, int]:
    """Return the numbers of user and group here; raise Refused if they are unknown."""
    try:
        user = int(entry.user) if entry.user.isdecimal() else pwd.getpwnam(entry.user).pw_uid
        group = int(entry.group) if entry.group.isdecimal() else grp.getgrnam(entry.group).gr_gid
    except KeyError:
        raise Refused(
            f"{entry.name}: belongs to {entry.user}:{entry.group}, which do not both exist here; make them first, for example with "
            "vcsreplicator setup"
        ) from None
    return user, group
