# SPDX-License-Identifier: GPL-2.0-or-later
"""What provokes the entries about programs that speak in a mirror's name, and what shows that their words repaired it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hgext.vcsreplicator.keys.pairs import make_key
from hgext.vcsreplicator.log import ACKS, NewRecord
from hgext.vcsreplicator.log.opening import open_log
from testing.builders.aggregator.sealing import roster_of
from testing.waiting import eventually

from .page import Entry, OnCall
from .provoking import provokes
from .upgrading import is_well, said_by_check


@contextmanager
def keys(on_call: OnCall) -> Iterator[None]:
    """Give the aggregator and both mirrors keys during the block."""
    cluster = on_call.cluster
    before = cluster.config.read_text()
    cluster.config.write_text(
        before.replace("[aggregator]\n", f'[aggregator]\nkey = "{cluster.folder}/aggregator.key"\n')
    )
    restart(on_call)
    for name in ("alpha", "beta"):
        run(on_call, "roster", "add-key", name, run(on_call, "key", name))
    try:
        yield
    finally:
        with open_log(cluster.log_url) as log:
            for mirror in roster_of(log).mirrors:
                for key in mirror.keys or ():
                    run(on_call, "roster", "remove-key", mirror.name, key, "--yes")
        cluster.config.write_text(before)
        restart(on_call)


def restart(on_call: OnCall) -> None:
    on_call.cluster.stop("aggregator")
    on_call.cluster.start("aggregator")


def run(on_call: OnCall, *words: str) -> str:
    done = on_call.cluster.cli(*words)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout.strip()


@provokes("alarm foreign acks")
def foreign_acks(on_call: OnCall, entry: Entry) -> None:
    name = on_call.repository()
    with keys(on_call):
        on_call.push(name)
        on_call.wait_announced(name)
        with open_log(on_call.cluster.log_url) as log:
            log.append([NewRecord(topic=ACKS, key=f"beta/{'e' * 32}", value=b"{}")])
        said_by_check(
            on_call,
            f"foreign acks beta: another program wrote records in its name under 1 key, the newest under beta/{'e' * 32}",
        )
        assert f"beta/{'e' * 32}" in entry.do("vcsreplicator errors list --json")
        said_by_check(on_call, "and the mirror has written its own again")
        on_call.push(name)
        on_call.wait_announced(name)
        restart(on_call)
        eventually(lambda: is_well(on_call), "all is well", every=0.5)


@provokes("alarm mirror without seal")
def mirror_without_seal(on_call: OnCall, entry: Entry) -> None:
    cluster, name = on_call.cluster, on_call.repository()
    with keys(on_call):
        other = make_key(Path(cluster.folder) / "other.key").public
        own = run(on_call, "key", "beta")
        run(on_call, "roster", "add-key", "beta", other)
        run(on_call, "roster", "remove-key", "beta", own, "--yes")
        said_by_check(
            on_call, "mirror without seal beta: nothing that it wrote is sealed with a key that the roster has for it"
        )
        on_call.push(name)
        assert entry.do("vcsreplicator key MIRROR", MIRROR="beta").strip() == own
        entry.do("vcsreplicator roster add-key MIRROR KEY", MIRROR="beta", KEY=own)
        on_call.wait_announced(name)
        eventually(lambda: is_well(on_call), "all is well", every=0.5)
