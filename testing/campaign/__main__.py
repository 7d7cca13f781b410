# SPDX-License-Identifier: GPL-2.0-or-later
"""`python -m testing.campaign --seed N --seeds M`: run campaigns; of each that fails, show its fewest faults and last steps."""

import click

from testing.campaign.faults import draw
from testing.campaign.world import describe, minimise, run


@click.command()
@click.option("--seed", default=1, show_default=True, help="The first seed.")
@click.option("--seeds", default=1, show_default=True, help="How many, one after the other.")
def main(seed: int, seeds: int) -> None:
    """Run campaigns, and exit with 1 if one of them broke a promise."""
    failed = 0
    for number in range(seed, seed + seeds):
        if run(draw(number)).violations:
            failed += 1
            click.echo(describe(run(minimise(draw(number)))))
    click.echo(f"{seeds} campaigns, {failed} failed")
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
