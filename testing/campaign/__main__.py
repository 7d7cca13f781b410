# SPDX-License-Identifier: GPL-2.0-or-later
"""`python -m testing.campaign --seed N --seeds M`: run campaigns; of each that fails, show its fewest faults and last steps."""

import gc
import os
from concurrent.futures import ProcessPoolExecutor

import click

from testing.campaign.faults import draw
from testing.campaign.world import describe, minimise, run


@click.command()
@click.option("--seed", default=1, show_default=True, help="The first seed.")
@click.option("--seeds", default=1, show_default=True, help="How many, as many at a time as there are processors.")
def main(seed: int, seeds: int) -> None:
    """Run campaigns, and exit with 1 if one of them broke a promise."""
    failed = 0
    gc.freeze()
    # Python's 700 would take a twentieth of the time; the garbage of a campaign is a few MB.
    gc.set_threshold(100_000)
    with ProcessPoolExecutor(min(seeds, len(os.sched_getaffinity(0)))) as pool:
        for failure in pool.map(find_failure, range(seed, seed + seeds), chunksize=1 + seeds // 100):
            if failure:
                failed += 1
                click.echo(failure)
    click.echo(f"{seeds} campaigns, {failed} failed")
    raise SystemExit(failed > 0)


def find_failure(seed: int) -> str:
    """Run the campaign of a seed; return a description of its failure, or nothing."""
    plan = draw(seed)
    return describe(run(minimise(plan))) if run(plan).violations else ""


if __name__ == "__main__":
    main()
