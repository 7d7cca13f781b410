# SPDX-License-Identifier: GPL-2.0-or-later
"""`python -m testing.mutants --seed N --sample M`: run the nearest tests on mutants, and name those that survive."""

import multiprocessing
import os
import random
import tomllib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path

import click

from testing.services.cache import CHECKOUT

from .mutations import Mutant, mutate
from .running import find_survivors

# What decides → the tests beyond those that its path names.
TARGETS: dict[str, tuple[str, ...]] = {
    "hgext/vcsreplicator/aggregator/decisions/*.py": (),
    "hgext/vcsreplicator/mirror/supervision/life.py": (),
    "hgext/vcsreplicator/outbox/*.py": (),
    "hgext/vcsreplicator/hg/serving/guards.py": (),
    "hgext/vcsreplicator/hg/serving/watermark.py": (),
    "notifier/publishing/courier.py": (),
    "notifier/delivery/window.py": (),
    "pushlog/store/journal.py": (),
}
EQUIVALENT = Path(__file__).with_name("equivalent.toml")


def find_targets() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the path of each module that decides, and the tests nearest to it, nearest first."""
    for pattern, further in TARGETS.items():
        for module in sorted(CHECKOUT.glob(pattern)):
            path = module.relative_to(CHECKOUT)
            folder = Path("tests", *path.parent.parts).as_posix().replace("hgext/vcsreplicator/", "")
            own = f"{folder}/test_{path.stem}.py"
            yield path.as_posix(), (*[own][: (CHECKOUT / own).exists()], folder, *further)


def read_equivalent() -> dict[str, str]:
    """Return the reason why no test can notice a mutant, by its name."""
    reasons: dict[str, str] = tomllib.loads(EQUIVALENT.read_text())
    return reasons


def draw(seed: int, sample: int, part: str) -> list[Mutant]:
    """Draw so many mutants, all if 0, of the modules whose path contains `part`; equivalent ones are left out."""
    equivalent = read_equivalent()
    paths = [path for path, _ in find_targets() if part in path]
    mutants = [mutant for path in paths for mutant in mutate(path, (CHECKOUT / path).read_text())]
    drawn = random.Random(seed).sample(mutants, min(sample or len(mutants), len(mutants)))
    # A seed draws the same whatever is listed.
    return [mutant for mutant in drawn if mutant.name not in equivalent]


@click.command()
@click.option("--seed", default=1, show_default=True, help="Draws the sample.")
@click.option("--sample", default=300, show_default=True, help="How many mutants to run; 0 for all.")
@click.option("--only", default="", help="Only modules whose path contains this.")
def main(seed: int, sample: int, only: str) -> None:
    """Run the nearest tests on mutants; exit with 1 if one survives that is not listed as equivalent."""
    mutants = draw(seed, sample, only)
    found = 0
    targets = dict(find_targets())
    parts: dict[tuple[str, ...], list[Mutant]] = {}
    for mutant in mutants:
        parts.setdefault(targets[mutant.path], []).append(mutant)
    # Each part in a process of its own, which imports the tests of this part alone.
    context = multiprocessing.get_context("spawn")
    at_once = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(at_once, context, max_tasks_per_child=1) as pool:
        for survivors in pool.map(find_survivors, repeat(CHECKOUT), parts, parts.values()):
            for mutant in survivors:
                found += 1
                click.echo(f"line {mutant.node.lineno}: {mutant.name}")
    click.echo(f"seed {seed}: {len(mutants)} mutants, {len(mutants) - found} killed, {found} survived")
    raise SystemExit(found > 0)


if __name__ == "__main__":
    main()
