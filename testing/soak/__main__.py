# SPDX-License-Identifier: GPL-2.0-or-later
"""`python -m testing.soak --minutes 120 --rate 20`: push for so long, and show whether all that is measured stays flat."""

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles

import click

from testing.bench.idle import list_processes, read_fields
from testing.builders.cluster import Cluster
from testing.builders.developer import Developer
from testing.builders.load import developer_environment
from testing.services.existing import shared
from testing.services.kafka import Kafka
from testing.soak.verdict import Sample, draw, find_growing

PUSHERS = 8
EVERY = 10.0
# Seconds until the last notice is delivered.
PATIENCE = 120.0


class Pusher(threading.Thread):
    """A developer who makes one change each `pace` seconds, in one repository after the other, and pushes it over HTTP.

    `took` has the seconds of each push; `failed` says why the pusher ended early.
    """

    def __init__(self, cluster: Cluster, names: list[str], pace: float, stop: threading.Event) -> None:
        super().__init__(name=f"pusher-{names[0]}")
        self._cluster, self._names, self._pace, self._stop_asked = cluster, names, pace, stop
        self.took: list[float] = []
        self.failed = ""

    def run(self) -> None:
        try:
            with Developer(self._cluster.folder, developer_environment(self._cluster), is_warm=False) as dana:
                clones = [self._clone(dana, name) for name in self._names]
                due = time.monotonic()
                while not self._stop_asked.wait(max(0.0, due - time.monotonic())):
                    clone = clones[len(self.took) % len(clones)]
                    (clone / "file").write_text(f"{len(self.took)}\n")
                    _call(dana, "--cwd", clone, "commit", "-q", "-A", "-m", f"change {len(self.took)}")
                    begun = time.monotonic()
                    _call(dana, "--cwd", clone, "push", "-q")
                    self.took.append(time.monotonic() - begun)
                    # A machine that cannot keep up makes fewer pushes, not many at once later.
                    due = max(due + self._pace, time.monotonic())
        except Exception as error:
            self.failed = f"{self.name}: {type(error).__name__}: {error}"

    def _clone(self, dana: Developer, name: str) -> Path:
        clone = self._cluster.folder / "work" / name
        clone.parent.mkdir(parents=True, exist_ok=True)
        _call(dana, "init", clone)
        (clone / ".hg/hgrc").write_text(f"[paths]\ndefault = {self._cluster.master_url}{name}\n")
        return clone


def _call(dana: Developer, *arguments: str | Path) -> None:
    code, output = dana.hg(*arguments)
    if code:
        raise AssertionError(f"hg {' '.join(map(str, arguments))}: exit {code}: {output}")


class Meter:
    """Measures all services of a cluster, and its pushers."""

    def __init__(self, cluster: Cluster, pushers: list[Pusher]) -> None:
        self._cluster, self._pushers = cluster, pushers
        self._began, self._disk = time.monotonic(), measure_disk(cluster.folder)
        # How many pushes of each pusher the former sample had.
        self._seen = dict.fromkeys(pushers, 0)
        self._read, self._announced = 0, 0

    def take(self) -> Sample:
        figures: dict[str, float] = {}
        for role in self._cluster.roles:
            folders = list_processes(self._cluster.pid(role))
            figures[f"{role} MB"] = sum(read_fields(each / "smaps_rollup", "Pss") for each in folders) / 1024
            figures[f"{role} handles"] = sum(map(_count_handles, folders))
        new: list[float] = []
        for pusher, seen in self._seen.items():
            took = pusher.took[seen:]
            self._seen[pusher] = seen + len(took)
            new += took
        if len(new) > 1:
            cuts, disk = quantiles(new, n=20), measure_disk(self._cluster.folder)
            figures["push, half within, ms"], figures["push, 95 % within, ms"] = 1000 * cuts[9], 1000 * cuts[18]
            figures["disk for a push, bytes"], self._disk = (disk - self._disk) / len(new), disk
        figures["behind by notices"] = self.count_pushes() - self.count_announced()
        return Sample(at=time.monotonic() - self._began, figures=figures)

    def count_pushes(self) -> int:
        return sum(len(pusher.took) for pusher in self._pushers)

    def count_announced(self) -> int:
        """Count the pushes that the JSON lines tell of."""
        if self._cluster.notices.exists():
            with self._cluster.notices.open("rb") as file:
                file.seek(self._read)
                whole = file.read().rpartition(b"\n")[0]
            self._read += len(whole)
            self._announced += whole.count(b'"changegroup.1"')
        return self._announced


def measure_disk(folder: Path) -> int:
    """Return the bytes of the files in a folder; what vanishes meanwhile counts for nothing."""
    total = 0
    for where, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.lstat(os.path.join(where, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _count_handles(process: Path) -> int:
    try:
        return len(os.listdir(process / "fd"))
    except FileNotFoundError:  # it ended
        return 0


@contextmanager
def _pushing(cluster: Cluster, rate: float, repositories: int) -> Iterator[list[Pusher]]:
    names = [f"repository-{number}" for number in range(repositories)]
    for name in names:
        cluster.hg("init", cluster.repository(name), on_master=True)
    stop, count = threading.Event(), min(PUSHERS, repositories)
    pushers = [Pusher(cluster, names[number::count], count / rate, stop) for number in range(count)]
    for pusher in pushers:
        pusher.start()
    try:
        yield pushers
    finally:
        stop.set()
        for pusher in pushers:
            pusher.join()


def soak(
    url: str, folder: Path, *, seconds: float, rate: float, repositories: int, every: float = EVERY
) -> tuple[list[Sample], int, list[str]]:
    """Push for so long; return the samples, the number of pushes, and what is wrong: growth, failures, notices that never came."""
    samples = []
    with Cluster(folder, "--log", url, warm=False) as cluster:
        with _pushing(cluster, rate, repositories) as pushers:
            meter, end = Meter(cluster, pushers), time.monotonic() + seconds
            while time.monotonic() < end and not any(pusher.failed for pusher in pushers):
                time.sleep(every)
                samples.append(meter.take())
        end = time.monotonic() + PATIENCE
        while (lacking := meter.count_pushes() - meter.count_announced()) > 0 and time.monotonic() < end:
            time.sleep(0.2)
        wrong = [pusher.failed for pusher in pushers if pusher.failed]
        wrong += [f"{role} ended" for role in cluster.roles if not cluster.running(role)]
    return samples, meter.count_pushes(), [*wrong, *[f"{lacking} pushes were not announced"] * bool(lacking)]


@click.command()
@click.option("--minutes", default=120.0, show_default=True)
@click.option("--rate", default=20.0, show_default=True, help="Pushes a second, if the machine can.")
@click.option("--repositories", default=200, show_default=True)
@click.option("--plots", type=click.Path(path_type=Path), default="build/soak.svg", show_default=True)
def main(minutes: float, rate: float, repositories: int, plots: Path) -> None:
    """Push to a cluster with two mirrors on Kafka; write plots, and exit with 1 if anything grew or is missing."""
    with shared(Kafka) as kafka, tempfile.TemporaryDirectory(prefix="soak-") as folder:
        url = f"{kafka.url}?topic-prefix=soak-{time.time_ns()}."
        samples, pushes, wrong = soak(url, Path(folder), seconds=60 * minutes, rate=rate, repositories=repositories)
    plots.parent.mkdir(parents=True, exist_ok=True)
    plots.write_text(draw(samples))
    wrong += find_growing(samples)
    seconds = samples[-1].at if samples else 1.0
    click.echo(
        f"{pushes} pushes to {repositories} repositories in {seconds / 60:.1f} minutes, {pushes / seconds:.1f} a second"
    )
    click.echo("\n".join(wrong) if wrong else "flat")
    click.echo(f"plots: {plots}")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
