# SPDX-License-Identifier: GPL-2.0-or-later
"""A rollback of a journal that an enemy left changes files of the repository alone, and those of Mercurial alone.

Each journal lies in a real repository, whose `recover` rolls back. `private` is what the recovering account may write, and the
enemy may not.
"""

import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mercurial import error
from mercurial import ui as ui_module
from mercurial.localrepo import localrepository

from pushlog import store, versions
from pushlog.store.rollback import journalled
from testing.faults.forks import await_fork, begin_fork
from testing.warm_hg import shared_hg

MINE = "mine\n"
Leave = Callable[..., None]


@pytest.fixture
def private(tmp_path: Path) -> Path:
    folder = tmp_path / "private"
    folder.mkdir()
    (folder / "profile").write_text(MINE)
    return folder


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> localrepository:
    monkeypatch.setenv("HGRCPATH", "")
    versions.initialize()
    store.complete_journals()
    ui = ui_module.ui.load()
    ui.setconfig(b"ui", b"quiet", True)
    made = versions.factory.repository(ui, os.fsencode(tmp_path / "repo"), create=True)
    folder = Path(os.fsdecode(made.path))
    (folder / "hgrc").write_text("[ui]\n")
    for name in ("fncache", "00manifest.i"):
        (folder / "store" / name).write_text("before, and more\n")
    (folder / "store/phaseroots").touch()
    return made


@pytest.fixture
def leave(repo: localrepository) -> Leave:
    def leave(cuts: bytes = b"", *backups: bytes) -> None:
        folder = Path(os.fsdecode(repo.svfs.join(b"")))
        (folder / "journal").write_bytes(cuts)
        (folder / "journal.backupfiles").write_bytes(b"".join(line + b"\n" for line in (b"2", *backups)))
        for name in ("../journal.backup.hgrc.bck", "journal.backup.requires.bck", "journal.backup.fncache.bck"):
            (folder / name).write_text("[hooks]\nevil = run me\n")

    return leave


def inside(repo: localrepository, name: str) -> Path:
    return Path(os.fsdecode(repo.path)) / name


def everything(folder: Path) -> dict[str, str | None]:
    return {
        str(path.relative_to(folder)): path.read_text(errors="replace") if path.is_file() else None
        for path in folder.rglob("*")
    }


# The lines of `journal`, and those of `journal.backupfiles`.
OUTSIDE: dict[str, tuple[bytes, bytes]] = {
    "restored above": (b"", b"\0../../../private/profile\0journal.backup.fncache.bck\0000"),
    "restored above its own backup": (
        b"",
        b"\0../../../private/profile\0../../../private/journal.backup.profile.bck\0000",
    ),
    "restored above as content": (
        b"",
        b"\0data/../../../../private/a.i\0data/../../../../private/journal.backup.a.i.bck\0000",
    ),
    "restored at an absolute name": (b"", b"\0PRIVATE/profile\0PRIVATE/journal.backup.profile.bck\0000"),
    "restored beside the store": (b"", b"plain\0../../private/profile\0../../private/journal.backup.profile.bck\0000"),
    "bookmarks at an absolute name": (b"", b"plain\0PRIVATE/bookmarks\0PRIVATE/journal.backup.bookmarks.bck\0000"),
    "restored from above": (b"", b"\0fncache\0../../../private/profile\0000"),
    "restored from an absolute name": (b"", b"\0fncache\0PRIVATE/profile\0000"),
    "removed above": (b"", b"\0../../../private/profile\0\0000"),
    "removed at an absolute name": (b"", b"plain\0PRIVATE/profile\0\0000"),
    "removed as temporary": (b"", b"plain\0\0../../private/profile\0000"),
    "cut above": (b"../../../private/profile\0002\n", b""),
    "cut at an absolute name": (b"PRIVATE/profile\0002\n", b""),
    "emptied above": (b"../../../private/profile\0000\n", b""),
}
# Files of the repository that no transaction of Mercurial names.
FOREIGN: dict[str, tuple[bytes, bytes]] = {
    "hgrc": (b"", b"plain\0hgrc\0journal.backup.hgrc.bck\0000"),
    "hgrc removed": (b"", b"plain\0hgrc\0\0000"),
    "hgrc of the store": (b"", b"\0../hgrc\0../journal.backup.hgrc.bck\0000"),
    "requirements of the store": (b"", b"\0requires\0journal.backup.requires.bck\0000"),
    "requirements": (b"", b"plain\0requires\0journal.backup.hgrc.bck\0000"),
    "the name of another store": (b"", b"plain\0sharedpath\0journal.backup.hgrc.bck\0000"),
    "a cache": (b"", b"plain\0cache/branch2-served\0cache/journal.backup.branch2-served.bck\0000"),
    "an unknown name": (b"", b"\0unknown\0journal.backup.unknown.bck\0000"),
    "an unknown place": (b"", b"wvfs\0fncache\0journal.backup.fncache.bck\0000"),
    "a backup of another file": (b"", b"\0phaseroots\0journal.backup.fncache.bck\0000"),
    "a temporary file": (b"", b"plain\0\0hgrc\0000"),
    "a file that is cut": (b"requires\0001\n", b""),
    "a size below nothing": (b"00manifest.i\0-1\n", b""),
    "a size that no file has": (b"00manifest.i\0" + b"9" * 19 + b"\n", b""),
    "a size that no number has": (b"00manifest.i\0" + b"9" * 5000 + b"\n", b""),
    "a line that is no entry": (b"00manifest.i\n", b""),
    "a line that is no backup": (b"", b"fncache"),
    "a third form": (b"", b"\0fncache\0journal.backup.fncache.bck\0000\0more"),
}


@pytest.mark.parametrize("case", [*OUTSIDE, *FOREIGN])
def test_a_journal_with_a_foreign_name_is_refused_and_changes_nothing(
    case: str, repo: localrepository, leave: Leave, private: Path, tmp_path: Path
) -> None:
    cuts, backup = (each.replace(b"PRIVATE", os.fsencode(private)) for each in {**OUTSIDE, **FOREIGN}[case])
    leave(b"00manifest.i\0006\n" + cuts, b"\0phaseroots\0\0000", *filter(None, [backup]))
    for name in ("journal.backup.profile.bck", "journal.backup.bookmarks.bck", "journal.backup.a.i.bck"):
        (private / name).write_text("evil\n")
    before = everything(tmp_path)
    with pytest.raises(error.Abort, match=r"store/journal: .*not rolled back"):
        repo.recover()
    assert everything(tmp_path) == before


PLACES = ["cut", "removed", "restored", "backup", "way", "journal", "backups", "temporary"]


@pytest.mark.parametrize(
    ("kind", "place"),
    [(kind, place) for kind in ("link", "pipe", "folder") for place in PLACES if (kind, place) != ("folder", "way")],
)
@pytest.mark.timeout(20)
def test_nothing_but_a_file_is_followed_read_or_changed(
    kind: str, place: str, repo: localrepository, leave: Leave, private: Path, tmp_path: Path
) -> None:
    cuts = {"cut": b"00manifest.i\0002\n", "removed": b"00manifest.i\0000\n", "way": b"data/profile.i\0002\n"}
    leave(cuts.get(place, b""), b"\0fncache\0journal.backup.fncache.bck\0000", b"\0\0phaseroots.pending\0000")
    names = {"restored": "fncache", "backup": "journal.backup.fncache.bck", "backups": "journal.backupfiles"}
    names |= {"way": "data", "journal": "journal", "temporary": "phaseroots.pending"}
    path = inside(repo, "store") / names.get(place, "00manifest.i")
    path.unlink(missing_ok=True)
    (private / "profile.i").write_text(MINE)
    if kind == "link":
        path.symlink_to(private if place == "way" else private / "profile")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    before = everything(tmp_path)
    with pytest.raises(error.Abort, match=r"store/journal: .*not rolled back"):
        repo.recover()
    assert everything(tmp_path) == before


def test_a_restored_file_has_no_more_than_read_and_write_permissions(repo: localrepository, leave: Leave) -> None:
    leave(b"", b"\0fncache\0journal.backup.fncache.bck\0000")
    inside(repo, "store/journal.backup.fncache.bck").chmod(0o6775)
    assert repo.recover()
    assert stat.S_IMODE(inside(repo, "store/fncache").stat().st_mode) == 0o664


@pytest.mark.parametrize("name", ["00manifest.i", f"data/{'n' * 253}.i"], ids=["short", "longest"])
def test_a_file_of_two_names_is_cut_under_one_of_them(
    repo: localrepository, leave: Leave, private: Path, name: str
) -> None:
    leave(b"%s\0002\n" % name.encode())
    inside(repo, "requires").write_text("revlogv1\nstore\n")  # fncache shortens names
    repo = versions.factory.repository(repo.ui, repo.root)
    file = inside(repo, f"store/{name}")
    file.parent.mkdir(exist_ok=True)
    file.unlink(missing_ok=True)
    file.hardlink_to(private / "profile")
    assert repo.recover()
    assert file.read_text() == MINE[:2]
    assert (private / "profile").read_text() == MINE


@pytest.mark.parametrize("sizes", [b"00manifest.i\0006\n", b""], ids=["also cut", "only restored"])
def test_a_file_that_is_its_own_backup_needs_room_for_what_is_kept(
    repo: localrepository, leave: Leave, sizes: bytes
) -> None:
    leave(sizes, b"\0" + b"00manifest.i\0journal.backup.00manifest.i.bck\0000")
    os.link(inside(repo, "store/00manifest.i"), inside(repo, "store/journal.backup.00manifest.i.bck"))
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6, former[1]))
    try:
        assert repo.recover()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)
    assert inside(repo, "store/00manifest.i").read_text().startswith("before")
    assert not inside(repo, "store/journal.backup.00manifest.i.bck").exists()


def test_a_file_that_cannot_be_restored_for_want_of_room_stays(repo: localrepository, leave: Leave) -> None:
    leave(b"", b"\0" + b"00manifest.i\0journal.backup.00manifest.i.bck\0000")
    inside(repo, "store/journal.backup.00manifest.i.bck").write_text("longer than there is room")
    left = inside(repo, "store/00manifest.i").read_text()
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6, former[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            repo.recover()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)
    assert inside(repo, "store/00manifest.i").read_text() == left
    assert repo.recover()
    assert inside(repo, "store/00manifest.i").read_text() == "longer than there is room"


def test_a_journal_that_is_not_read_is_not_shown(repo: localrepository, leave: Leave, private: Path) -> None:
    leave()
    (private / "key").write_text("secret\nsecret\n")
    inside(repo, "store/journal").unlink()
    inside(repo, "store/journal").symlink_to(private / "key")
    with pytest.raises(error.Abort) as refused:
        repo.recover()
    assert b"secret" not in refused.value.message + (refused.value.hint or b"")


def test_what_mercurial_journals_is_rolled_back(repo: localrepository, leave: Leave) -> None:
    leave(
        b"00manifest.i\0006\ndata/new.i\0000\n",
        b"\0fncache\0journal.backup.fncache.bck\0000",
        b"\0phaseroots\0\0000",
        b"plain\0bookmarks\0journal.backup.bookmarks.bck\0000",
        b"plain\0dirstate\0\0000",
        b"plain\0\0bookmarks.pending\0000",
        b"store\0\00000changelog.i.a\0000",
    )
    for name, content in {
        "store/data/new.i": "new",
        "bookmarks": "new",
        "journal.backup.bookmarks.bck": "old",
        "dirstate": "new",
        "bookmarks.pending": "new",
        "store/00changelog.i.a": "new",
    }.items():
        inside(repo, name).parent.mkdir(exist_ok=True)
        inside(repo, name).write_text(content)
    assert repo.recover()
    left = everything(inside(repo, ""))
    assert left["store/00manifest.i"] == "before"
    assert left["store/fncache"] == "[hooks]\nevil = run me\n"
    assert left["bookmarks"] == "old"
    gone = {"store/data/new.i", "store/phaseroots", "dirstate", "bookmarks.pending", "store/00changelog.i.a"}
    gone |= {"store/journal", "store/journal.backupfiles", "store/journal.backup.fncache.bck"}
    assert not gone & left.keys()


def test_a_last_line_that_a_power_cut_tore_is_left_out(repo: localrepository, leave: Leave) -> None:
    leave(b"00manifest.i\0006\n00manifest.d\0001")
    inside(repo, "store/00manifest.d").write_text("whole")
    with inside(repo, "store/journal.backupfiles").open("ab") as file:
        file.write(b"\0fnca")
    assert repo.recover()
    assert inside(repo, "store/00manifest.d").read_text() == "whole"


def test_a_missing_backup_leaves_the_file_and_is_reported(repo: localrepository, leave: Leave) -> None:
    leave(b"", b"\0phaseroots\0journal.backup.phaseroots.bck\0000")
    said: list[bytes] = []
    repo.ui.warn = said.append  # type: ignore[method-assign, assignment]
    assert repo.recover()
    assert b"failed to recover phaseroots" in said[0]
    assert inside(repo, "store/phaseroots").exists()


def test_an_abort_reads_no_foreign_name_that_was_added_to_its_journal(repo: localrepository, private: Path) -> None:
    (private / "other").write_text(MINE)
    inside(repo, "store/obsstore").symlink_to(private / "other")
    with repo.lock():
        tr = repo.transaction(b"test")
        tr.add(b"00manifest.i", 6)
        with inside(repo, "store/journal").open("ab") as journal:
            journal.write(b"../../../private/profile\0002\nobsstore\0002\n")
        tr.abort()
    assert (private / "profile").read_text() == (private / "other").read_text() == MINE


def test_an_abort_of_names_that_an_extension_backs_up_is_whole(repo: localrepository) -> None:
    inside(repo, "store/their-own").write_text("before")
    with repo.lock():
        tr = repo.transaction(b"test")
        tr.addbackup(b"their-own")
        inside(repo, "store/their-own").unlink()
        inside(repo, "store/their-own").write_text("after")
        tr.abort()
    assert inside(repo, "store/their-own").read_text() == "before"
    assert not inside(repo, "store/journal").exists()


def test_a_commit_removes_no_foreign_file_as_a_backup_of_the_last_one(repo: localrepository, private: Path) -> None:
    lines = (b"plain\0x\0../../private/profile\0000", b"\0fncache\0undo.backup.fncache.bck\0000")
    inside(repo, "store/undo.backupfiles").write_bytes(b"".join(line + b"\n" for line in (b"2", *lines)))
    inside(repo, "store/undo.backup.fncache.bck").write_text("")
    with repo.lock(), repo.transaction(b"test"):
        pass
    assert (private / "profile").exists()
    # Older ones remove no backups of the last transaction.
    assert inside(repo, "store/undo.backup.fncache.bck").exists() == versions.is_older_than((6, 4))


def test_a_rollback_that_is_killed_before_any_step_is_repeated_whole(
    repo: localrepository, leave: Leave, tmp_path: Path
) -> None:
    leave(
        b"00manifest.i\0006\ndata/a.i\0002\ndata/b.i\0000\n",
        b"\0fncache\0journal.backup.fncache.bck\0000",
        b"store\0data/a.i\0data/journal.backup.a.i.bck\0000",
        b"plain\0dirstate\0\0000",
    )
    for name in ("store/data/a.i", "store/data/b.i", "store/data/journal.backup.a.i.bck", "dirstate"):
        inside(repo, name).parent.mkdir(exist_ok=True)
        inside(repo, name).write_text(name)
    os.link(inside(repo, "store/00manifest.i"), tmp_path / "clone")
    begun = tmp_path / "begun"
    shutil.copytree(tmp_path / "repo", begun, symlinks=True)
    assert repo.recover()
    expected = everything(tmp_path / "repo")
    steps = 0
    while roll_back_killed_at(steps, begun, tmp_path / "repo"):
        if inside(repo, "store/journal").exists():
            assert repo.recover()
        # Behind the journal a kill leaves backups, and the lock of a process that is gone.
        left = {
            name: text
            for name, text in everything(tmp_path / "repo").items()
            if name in expected or ("journal.backup" not in name and not name.endswith("/lock"))
        }
        assert left == expected
        steps += 1
    assert steps > 15


def roll_back_killed_at(step: int, begun: Path, folder: Path) -> bool:
    """Whether a rollback was killed before the changing system call of this number, in a process of its own."""
    shutil.rmtree(folder)
    shutil.copytree(begun, folder, symlinks=True)
    (folder / ".hg/store/00manifest.i").unlink()
    os.link(begun.with_name("clone"), folder / ".hg/store/00manifest.i")
    calls = 0

    def count(event: str, _arguments: tuple[object, ...]) -> None:
        nonlocal calls
        if event in {"os.remove", "os.truncate", "os.rename", "os.chmod", "open"}:
            if calls == step:
                os.kill(os.getpid(), signal.SIGKILL)
            calls += 1

    def recover() -> None:
        sys.addaudithook(count)
        versions.factory.repository(ui_module.ui.load(), os.fsencode(folder)).recover()

    ended = await_fork(begin_fork(recover))
    assert ended in (0, -signal.SIGKILL)
    return ended != 0


# The formats of a repository, each with what else it needs.
FORMATS = {
    "usual": (),
    "plain": ("format.usefncache=no", "format.dotencode=no"),
    "working copy of version 2": ("format.use-dirstate-v2=yes", "format.use-dirstate-tracked-hint=yes"),
    "lists of nodes": ("format.use-persistent-nodemap=yes",),
    "trees": ("experimental.treemanifest=yes",),
    "bookmarks in the store": ("format.bookmarks-in-store=yes",),
    "revlogs of version 2": ("experimental.revlogv2=enable-unstable-format-and-corrupt-my-data",),
    "changelog of version 2": ("format.exp-use-changelog-v2=enable-unstable-format-and-corrupt-my-data",),
    "large files": ("extensions.largefiles=",),
    "evolve and topic": ("extensions.evolve=", "extensions.topic="),
}
KEEP = """
import itertools, os, shutil
from mercurial import extensions, transaction
number = itertools.count()
def keep(orig, tr):
    tr.addfilegenerator(b'~~keep', (), lambda: copy(tr), location=b'plain', post_finalize=True)
    return orig(tr)
def copy(tr):
    count = next(number)
    for name in (b'journal', b'journal.backupfiles'):
        shutil.copy(tr._opener.join(name), os.path.join(os.environb[b'KEPT'], b'%d.%d.' % (os.getpid(), count) + name))
def extsetup(ui):
    extensions.wrapfunction(transaction.transaction, 'close', keep)
"""
WORK = """\
hg init repo; cd repo
echo a > a; echo a > B; hg commit -qAm a; echo b > a; hg commit -qm b; mkdir d; echo c > d/c; hg commit -qAm c
head -c 300000 /dev/urandom > long; hg commit -qAm long; head -c 300000 /dev/urandom > long; hg commit -qm long
hg bookmark x; hg phase -p -r 0; hg branch -q other; hg commit -qm branch; hg update -q 1; echo d > e; hg commit -qAm e
echo f > e; hg commit -q --amend -m f; hg rebase -q -r . -d 0 --config extensions.rebase=; hg tag -q t
hg histedit -q --config extensions.histedit= --config ui.interface=text -r tip --commands - <<X
edit $(hg log -r tip -T '{node|short}')
X
hg histedit -q --config extensions.histedit= --abort
hg strip -q tip --config extensions.strip=; hg censor --config extensions.censor= -q -r 3 long --no-check-heads
hg clone -q . ../clone; hg -R ../clone pull -q --config extensions.pushlog=
true
"""


@pytest.mark.sample(2)
@pytest.mark.processes
@pytest.mark.parametrize("name", FORMATS)
def test_every_name_that_mercurial_journals_is_accepted(name: str, tmp_path: Path) -> None:
    kept, hgrc = tmp_path / "kept", tmp_path / "hgrc"
    kept.mkdir()
    (tmp_path / "keep.py").write_text(KEEP)
    slow = "".join(f"{each}.slow-path = allow\n" for each in ("dirstate-v2", "fileindex", "revlog.persistent-nodemap"))
    lines = [
        f"[storage]\n{slow}[extensions]\nkeep = {tmp_path}/keep.py\n[ui]\nusername = dana\n[experimental]\nevolution = all\n"
    ]
    for option in FORMATS[name]:
        section, _, rest = option.partition(".")
        lines.append(f"[{section}]\n{rest}\n")
    hgrc.write_text("".join(lines))
    environment = {**os.environ, "HGRCPATH": str(hgrc), "KEPT": str(kept), "HGEDITOR": "true"}
    environment["PATH"] = f"{Path(shared_hg(environment)).parent}:{environment['PATH']}"
    done = subprocess.run(
        ["sh", "-c", WORK], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    names = set()
    for file in kept.glob("*.journal"):
        cuts = journalled.parse_cuts(file.read_bytes())
        saved = journalled.parse_saved(file.with_name(file.name + ".backupfiles").read_bytes())
        journalled.check(cuts, saved)
        names |= {cut.name for cut in cuts} | {each for line in saved for each in (line.name, line.backup)}
    print(done.stdout, done.stderr, sorted(names))
    assert len(list(kept.glob("*.journal"))) > 12
    assert names & {b"fncache", b"fileindex"} or name == "plain"
