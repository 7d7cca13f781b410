# SPDX-License-Identifier: GPL-2.0-or-later
"""Pushlog: questions at 1,000 and at 1,000,000 pushes.

Set PUSHLOG_PUSHES for another size than a million, and PUSHLOG_FOLDER to keep the repositories (building a million takes minutes).
The ratio of a line is against the same question at 1,000 pushes; that of json-pushes of ten against a plain page, too.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from testing.bench.measure import Row

SMALL = 1000
SAMPLES = 8
REPEATS = 5


def rows() -> Iterator[Row]:
    large = int(os.environ.get("PUSHLOG_PUSHES", "1000000"))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(os.environ.get("PUSHLOG_FOLDER", temporary))
        hgrc = Path(temporary) / "hgrc"
        hgrc.write_text("[extensions]\n*:required = yes\npushlog =\n[pushlog]\nmaxpushes = 0\n")
        os.environ["HGRCPATH"] = str(hgrc)
        baselines: dict[str, float] = {}
        for pushes in (SMALL, large):
            repository = folder / f"pushes-{pushes}"
            if not repository.exists():
                build = [sys.executable, "-P", "-m", "testing.bench.million_pushes", str(repository), str(pushes)]
                subprocess.run(build, check=True)
            for name, ask in questions(repository, pushes):
                row = Row(
                    name=name, unit="ms CPU", samples=measured(ask), baseline=baselines.get(name), note=f"{pushes:,}"
                )
                baselines.setdefault(name, row.median)
                baselines[f"{name} of {pushes}"] = row.median
                yield row
            ten, page = baselines[f"json-pushes of ten of {pushes}"], baselines[f"plain page of {pushes}"]
            yield Row(
                name="json-pushes of ten against a page",
                unit="ms CPU",
                samples=[ten],
                baseline=page,
                note=f"{pushes:,}",
            )
        yield Row(
            name="all pushes as JSON",
            unit="ms CPU",
            samples=everything(folder, min(large, 200_000)),
            note="200,000 at most",
        )


def measured(ask: Callable[[], object]) -> list[float]:
    ask()
    samples: list[float] = []
    while len(samples) < SAMPLES and sum(samples) < 4000:
        start = spent()
        for _time in range(REPEATS):
            ask()
        samples.append((spent() - start) * 1000 / REPEATS)
    return samples


def spent() -> float:
    """Processor seconds of this process and of commands it ran: what others do on the machine does not count."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def questions(repository: Path, pushes: int) -> Iterator[tuple[str, Callable[[], object]]]:
    get, log, revset = web(repository), command(repository), revisions(repository)
    middle = pushes // 2
    node = log("log", "-r", str(middle), "-T", "{node}").decode()
    older = log("log", "-r", str(pushes - 11), "-T", "{node}").decode()
    yield "plain page", lambda: get("/rev/tip")
    yield "json-pushes of ten", lambda: get("/json-pushes", f"startID={middle}&endID={middle + 10}")
    yield "changeset=", lambda: get("/json-pushes", f"changeset={node}")
    yield (
        "user= and ten ids",
        lambda: get("/json-pushes", f"user=user3@example.com&startID={middle}&endID={middle + 10}"),
    )
    yield "tipsonly=1", lambda: get("/json-pushes", f"tipsonly=1&startID={pushes - 10}")
    yield "fromchange=", lambda: get("/json-pushes", f"fromchange={older}")
    yield "startdate=", lambda: get("/json-pushes", f"startdate={1400000000 + 60 * (pushes - 11)}")
    yield "pushloghtml", lambda: get("/pushloghtml")
    yield "json-rev", lambda: get(f"/json-rev/{node}")
    yield "hg log of one, plain", lambda: log("log", "-r", node, "-T", "{node}")
    yield "{pushid} of one", lambda: log("log", "-r", node, "-T", "{pushid}")
    yield "{pushid} of 100", lambda: log("log", "-l", "100", "-T", "{pushid}\n")
    for expression in ("pushid(7)", "pushrev(10:20)", "pushhead()", "pushuser(user3)", "pushdate('2014-05-13')"):
        within = expression if expression.startswith(("pushid", "pushrev")) else f"10:30 and {expression}"
        yield within, partial(revset, within)


def web(repository: Path) -> Callable[..., bytes]:
    from mercurial import initialization
    from mercurial.hgweb import hgweb_mod_inner

    initialization.init()
    application = hgweb_mod_inner.hgweb(os.fsencode(repository))

    def get(path: str, query: str = "") -> bytes:
        environment = {
            "wsgi.url_scheme": "http",
            "wsgi.input": None,
            "SERVER_NAME": "hg.example.com",
            "SERVER_PORT": "80",
            "SCRIPT_NAME": "",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": "GET",
        }
        started: list[str] = []
        body = b"".join(application(environment, lambda status, _headers: started.append(status)))
        assert started[0].startswith("200"), (started, body)
        return body

    return get


def command(repository: Path) -> Callable[..., bytes]:
    hg = Path(sys.executable).with_name("hg")

    def run(*words: str) -> bytes:
        return subprocess.run([hg, "-R", repository, *words], check=True, stdout=subprocess.PIPE).stdout

    return run


def revisions(repository: Path) -> Callable[[str], list[int]]:
    from mercurial import extensions
    from mercurial import ui as ui_module
    from mercurial.repo import factory

    user_interface = ui_module.ui.load()
    extensions.loadall(user_interface)
    extensions.populateui(user_interface)
    opened = factory.repository(user_interface, os.fsencode(repository))
    return lambda expression: list(opened.revs(expression.encode()))


def everything(folder: Path, last: int) -> list[float]:
    """One answer with every push up to ``last``, three times: the first finds no Git commits cached."""
    largest = max(folder.glob("pushes-*"), key=lambda place: int(place.name.partition("-")[2]))
    get = web(largest)
    samples = []
    for _sample in range(3):
        start = spent()
        get("/json-pushes", f"startID=0&endID={last}")
        samples.append((spent() - start) * 1000)
    return samples


def main() -> None:
    for row in rows():
        ratio = f"{row.median / row.baseline:6.2f}" if row.baseline else ""
        print(f"{row.name:36} {statistics.median(row.samples):10.2f} {row.unit} {ratio:8} {row.note}")


if __name__ == "__main__":
    main()
