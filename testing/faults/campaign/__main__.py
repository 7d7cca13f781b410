# SPDX-License-Identifier: GPL-2.0-or-later
"""`python -m testing.faults.campaign --seed N --seconds S`: run a campaign, or judge the history of an earlier one."""

import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import click

from testing.faults.campaign.history import Seen, read
from testing.faults.campaign.judge import judge
from testing.faults.campaign.page import make_table, write_page
from testing.faults.campaign.running import Plan, run
from testing.faults.campaign.table import EVERY


@click.command()
@click.option("--seed", type=int, help="Of an earlier campaign; by chance if absent.")
@click.option("--seconds", default=0.0, help="How long faults strike; each strikes at least once.")
@click.option("--strikes", default=0, help="How often faults strike at least, all together.")
@click.option("--only", default="", metavar="ID,ID", help="These faults alone, as to find which one is needed.")
@click.option("--together", default=1, show_default=True, help="How many strike at once, each in another part.")
@click.option(
    "--judge", "files", multiple=True, type=click.Path(path_type=Path, exists=True), help="Judge this; nothing runs."
)
@click.option("--page", "writes_page", is_flag=True, help="Write the table into docs/reliability.md.")
def main(
    seed: int | None,
    seconds: float,
    strikes: int,
    only: str,
    together: int,
    files: tuple[Path, ...],
    writes_page: bool,
) -> None:
    """Let every fault strike a real installation under load, and exit with 1 if a promise was broken."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # else services in namespaces of their own would stay
    histories = [read(file) for file in files] or _run_each(seed, seconds, strikes, only, together)
    if writes_page:
        write_page(histories)
    click.echo(make_table(histories))
    violations = [violation for seen in histories for violation in judge(seen)]
    click.echo("\n".join(violations))
    sys.exit(bool(violations))


def _run_each(seed: int | None, seconds: float, strikes: int, only: str, together: int) -> list[list[Seen]]:
    """Run one campaign for each number of brokers that wanted faults need."""
    seed = random.randrange(10**6) if seed is None else seed
    click.echo(f"seed {seed}")
    wanted = [fault for fault in EVERY if not only or fault.id in only.split(",")]
    brokers = sorted({fault.brokers for fault in wanted})
    plans = [
        Plan(seed=seed, faults=faults, seconds=seconds, strikes=max(strikes, len(faults)), together=together)
        for each in brokers
        if (faults := [fault for fault in wanted if fault.brokers == each])
    ]
    return [_run(plan) for plan in plans]


def _run(plan: Plan) -> list[Seen]:
    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    seen = run(plan, folder)
    kept = folder.with_suffix(".jsonl")
    shutil.copy(folder / "history.jsonl", kept)
    click.echo(f"history: {kept}")
    if not judge(seen):
        shutil.rmtree(folder, ignore_errors=True)
    return seen


if __name__ == "__main__":
    main()
