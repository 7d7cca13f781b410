# SPDX-License-Identifier: GPL-2.0-or-later
"""Added wall time of `hg push` against bare Mercurial: the pushlog alone; everything with mirrors paused; everything at work.

The row "rare" is bare Mercurial with the master's setting of Python's collector (`docs/decisions/rare-collections.md`). At work are
the relay, two mirrors, the aggregator and the notifier on the same processors, on either log; the push before has been announced.

Rounds are interleaved. Every push is one small changeset from a process of its own to a server process of its own, as over SSH, so
what the server imports counts. The rows of steps are pushes of their own, whose server writes down what each step takes
(`push_steps`).
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hgext.vcsreplicator.log import topics
from hgext.vcsreplicator.log.opening import open_log
from testing.bench import push_steps
from testing.bench.flow import warm_up
from testing.bench.measure import Row
from testing.builders.cluster import Cluster
from testing.services.existing import shared
from testing.services.kafka import Kafka
from testing.waiting import eventually

ROUNDS = int(os.environ.get("BENCH_PUSH_ROUNDS", "30"))
HEADS = int(os.environ.get("BENCH_PUSH_HEADS", "100000"))
HG = str(Path(sys.executable).with_name("hg"))

MASTER = """\
[extensions]
*:required = yes
pushlog =
vcsreplicator =
[vcsreplicator]
role = master
relay = {folder}/relay.sock
source = hg://bench
durability = {durability}
[vcsreplicator-roots]
{folder}/repos = .
"""
SERVER = """\
#!/bin/sh
shift
case "$*" in
  */repos/master/*) HGRCPATH={folder}/work.hgrc ;;
  */bare/*-pushlog*) HGRCPATH={folder}/pushlog.hgrc ;;
  */bare/*-rare*) HGRCPATH={folder}/rare.hgrc ;;
  */bare/*) HGRCPATH={folder}/bare.hgrc ;;
  *outbox*) HGRCPATH={folder}/outbox.hgrc ;;
  *steps*) HGRCPATH={folder}/steps.hgrc ;;
  *) HGRCPATH={folder}/store.hgrc ;;
esac
export HGRCPATH
eval "exec $*"
"""
# Bare Mercurial with the master's setting of the collector: what of a difference is not the product's.
RARE = """\
import atexit, gc
gc.set_threshold(20_000, 10, 10)
atexit.register(gc.freeze)
"""
VARIANTS = ("bare", "rare", "pushlog", "outbox", "store")
REPLICATED = VARIANTS[3:]
# Pushes with `durability = store`, step by step.
STEPS = "steps"
# Pushes to a cluster at work.
WORK = "work"


@dataclass(frozen=True, slots=True)
class Bench:
    """A folder with a repository and a clone for each variant."""

    folder: Path

    def hg(self, *arguments: str, hgrc: str = "client.hgrc") -> None:
        subprocess.run(
            [HG, *arguments],
            cwd=self.folder,
            env={**_environment(), "HGRCPATH": str(self.folder / hgrc), "PUSH_STEPS": str(self.folder / "steps.json")},
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def prepare(self, name: str, variant: str, rounds: int, heads: int) -> None:
        """A repository with this many heads, and a clone with a changeset for each round."""
        hgrc = f"{variant}.hgrc"
        where = _place(name, variant)
        self.hg("init", where, hgrc="client.hgrc" if heads else hgrc)
        if heads:
            _add_heads(self.folder / where, heads)
        self.hg("clone", "-q", "-U", "-r", "0", where, f"clone-{name}-{variant}") if heads else self.hg(
            "init", f"clone-{name}-{variant}"
        )
        clone = self.folder / f"clone-{name}-{variant}"
        _commit_rounds(clone, rounds + 2)
        for warm in (1, 2):
            self.push(name, variant, warm)

    def push(self, name: str, variant: str, number: int) -> float:
        """Pushes changeset `number` (from 1); milliseconds."""
        where = _place(name, variant)
        target = f"ssh://x/{self.folder}/{where}"
        started = time.perf_counter()
        self.hg("-R", f"clone-{name}-{variant}", "push", "-q", "-f", "-r", f"desc('round {number}.')", target)
        return (time.perf_counter() - started) * 1000


def rows() -> list[Row]:
    """Wall time by variant and repository, and what one push costs inside the server, by step."""
    found = []
    with tempfile.TemporaryDirectory(prefix="bench-push-") as folder:
        bench = Bench(Path(folder))
        _configure(bench)
        with _relay(bench):
            found += _wall("small", bench, 0)
            found += _wall("many-heads", bench, HEADS)
            found += _steps("small", bench, 0)
            found += _steps("many-heads", bench, HEADS)
        found += _at_work("embedded", bench)
        with shared(Kafka) as kafka:
            warm_up(f"{kafka.url}?topic-prefix=warm-{time.time_ns()}.")
            found += _at_work("Kafka", bench, "--log", f"{kafka.url}?topic-prefix=bench-{time.time_ns()}.")
    return found


def _at_work(log: str, bench: Bench, *options: str) -> list[Row]:
    """Wall time while a cluster works on the push."""
    with Cluster(bench.folder / log, *options, warm=False) as cluster:
        (bench.folder / "work.hgrc").write_text(f"%include {bench.folder}/{log}/master.hgrc\n")

        def settle(variant: str, count: int) -> None:
            if variant == WORK:
                eventually(lambda: sum("pushlog_pushes" in str(line) for line in cluster.lines()) == count, "announced")

        return _wall(log, bench, 0, ("bare", "rare", WORK), settle)


def _steps(name: str, bench: Bench, heads: int) -> list[Row]:
    """Wall time of each step, inside the server process of each push."""
    bench.prepare(name, STEPS, ROUNDS, heads)
    written = bench.folder / "steps.json"
    written.unlink()
    for number in range(3, ROUNDS + 3):
        bench.push(name, STEPS, number)
    pushes = [json.loads(line) for line in written.read_text().splitlines()]
    pushes = [
        push for push in pushes if "after the commit" in push
    ]  # not the creation of the repository, nor a refusal
    steps = [push_steps.LOADING, push_steps.MODULES, *(step for step, _where, _name in push_steps.STEPS)]
    return [
        Row(name=f"step, {name}: {step}", unit="ms", samples=[push.get(step, 0.0) for push in pushes]) for step in steps
    ]


def _wall(
    name: str,
    bench: Bench,
    heads: int,
    variants: Sequence[str] = VARIANTS,
    settle: Callable[[str, int], None] = lambda variant, pushes: None,
) -> list[Row]:
    """Wall time of pushes of each variant, interleaved; `settle` waits after each, told the pushes of its variant so far."""
    for variant in variants:
        bench.prepare(name, variant, ROUNDS, heads)
        settle(variant, 2)
    samples: dict[str, list[float]] = {variant: [] for variant in variants}
    for number in range(3, ROUNDS + 3):
        for variant in random.sample(variants, len(variants)):
            samples[variant].append(bench.push(name, variant, number))
            settle(variant, number)
    bare = Row(name=f"hg push, {name}, bare Mercurial", unit="ms", samples=samples["bare"])
    found = [bare]
    for variant in variants[1:]:
        found.append(Row(name=f"hg push, {name}, {variant}", unit="ms", samples=samples[variant], baseline=bare.median))
        for beside in ("bare", "rare") if variant != "rare" else ("bare",):
            added = [value - other for value, other in zip(samples[variant], samples[beside], strict=True)]
            row = f"added, {name}, {variant} beyond {beside}"
            found.append(Row(name=row, unit="ms", samples=added, note="pairs of one round"))
    return found


def _configure(bench: Bench) -> None:
    folder = bench.folder
    (folder / "repos").mkdir()
    (folder / "bare").mkdir()
    (folder / "server").write_text(SERVER.format(folder=folder))
    (folder / "server").chmod(0o755)
    (folder / "client.hgrc").write_text(f"[ui]\nssh = {folder}/server\nusername = bench\n[phases]\npublish = no\n")
    (folder / "bare.hgrc").write_text("")
    (folder / "rare.py").write_text(RARE)
    (folder / "rare.hgrc").write_text(f"[extensions]\nrare = {folder}/rare.py\n")
    (folder / "pushlog.hgrc").write_text("[extensions]\n*:required = yes\npushlog =\n")
    for durability in REPLICATED:
        (folder / f"{durability}.hgrc").write_text(MASTER.format(folder=folder, durability=durability))
    steps = f"[extensions]\nsteps = {push_steps.__file__}\n"
    (folder / f"{STEPS}.hgrc").write_text(steps + MASTER.format(folder=folder, durability="store"))


@contextmanager
def _relay(bench: Bench) -> Iterator[None]:
    """The relay as a service of its own, on the embedded log."""
    config = bench.folder / "relay.toml"
    url = f"sqlite://{bench.folder}/log.db"
    config.write_text(
        f'log = "{url}"\n[relay]\nsocket = "{bench.folder}/relay.sock"\nsource = "hg://bench"\n'
        f'[relay.roots]\n"{bench.folder}/repos" = ""\n'
    )
    with open_log(url, creates=True) as log:
        log.create(topics())
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", "relay", "--config", str(config)],
        env={**_environment(), "HGRCPATH": ""},
        stderr=subprocess.DEVNULL,
    )
    try:
        while not (bench.folder / "relay.sock").exists():
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


def _repository(folder: Path) -> Any:
    from mercurial import initialization
    from mercurial import ui as uimod
    from mercurial.repo import factory

    initialization.init()
    return factory.repository(uimod.ui.load(), os.fsencode(folder)).unfiltered()


def _commit_rounds(clone: Path, count: int) -> None:
    """`count` changesets, one on another, made in process."""
    from mercurial import context

    repo = _repository(clone)
    parent = repo.changelog.node(0) if len(repo) else repo.nullid
    with repo.wlock(), repo.lock(), repo.transaction(b"bench"):
        for number in range(1, count + 1):
            text = b"round %d." % number

            def file(repo: Any, ctx: Any, path: bytes, text: bytes = text) -> Any:
                return context.memfilectx(repo, ctx, path, text)

            made = context.memctx(repo, (parent, repo.nullid), text, [b"file"], file, user=b"bench", date=(0, 0))
            parent = repo.commitctx(made)


def _add_heads(folder: Path, count: int) -> None:
    """`count` public changesets without children, all on one."""
    from mercurial import context, metadata, phases

    repo = _repository(folder)

    def file(repo: Any, ctx: Any, path: bytes) -> Any:
        return context.memfilectx(repo, ctx, path, b"x")

    with repo.wlock(), repo.lock(), repo.transaction(b"bench") as tr:
        root = repo.commitctx(
            context.memctx(repo, (repo.nullid,) * 2, b"root", [b"x"], file, user=b"bench", date=(0, 0))
        )
        manifest, files = repo[root].manifestnode(), metadata.ChangingFiles()
        for number in range(count):
            repo.changelog.add(manifest, files, b"head %d" % number, tr, root, repo.nullid, b"bench", (0, 0))
        phases.advanceboundary(repo, tr, phases.public, [repo.changelog.node(rev) for rev in repo.changelog])


def _place(name: str, variant: str) -> str:
    """The folder of a variant's repository: below the replicated root if it is replicated."""
    if variant == WORK:
        return f"{name}/repos/master/{name}-{variant}"
    return f"{'repos' if variant in (*REPLICATED, STEPS) else 'bare'}/{name}-{variant}"


def _environment() -> dict[str, str]:
    """Without what keeps Python from storing compiled modules: each push would compile ours again."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    path = os.pathsep.join([str(Path(HG).parent), os.environ.get("PATH", os.defpath)])
    return {**kept, "PATH": path, "USER": "bench"}
