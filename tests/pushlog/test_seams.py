# SPDX-License-Identifier: GPL-2.0-or-later
"""The set-up of an extension: by threads of a web server at once, and of modules that a server over SSH loads late."""

import contextlib
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pushlog import seams

# A program with Mercurial's demand import; `wrap` puts a name before what a strip returns, and `is_loaded` asks without loading.
PROGRAM = """
import sys, types
import hgdemandimport
hgdemandimport.enable()
from mercurial import extensions
from pushlog import seams, versions
sys.argv = ["hg", "serve", *{arguments}]
def is_loaded():
    return type(sys.modules.get("mercurial.repair")) is types.ModuleType
def wrap(name):
    seams.wrap_late("mercurial.repair", "strip", lambda orig, *arguments: name)
{lines}
"""
STDIO = ["--stdio"]


def run(lines: str, arguments: list[str] = STDIO) -> str:
    program = PROGRAM.format(lines=lines, arguments=arguments)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


CALL = "print(repair.strip(None, None, []))"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("wrap('ours'); print(is_loaded()); from mercurial import repair; " + CALL, "False ours"),
        ("from mercurial import repair; wrap('ours'); print(is_loaded()); " + CALL, "False ours"),
        ("from mercurial import repair; repair.strip; wrap('ours'); print(is_loaded()); " + CALL, "True ours"),
        ("wrap('ours'); from mercurial.repair import strip; print(strip(None, None, []))", "ours"),
    ],
    ids=["loaded after", "named before, loaded after", "loaded before", "loaded by name"],
)
def test_a_module_is_wrapped_whenever_a_server_over_ssh_loads_it(lines: str, said: str) -> None:
    assert run(lines).split() == said.split()


@pytest.mark.processes
@pytest.mark.parametrize("loading", ["from mercurial import repair; repair.strip", "pass"])
def test_wrappers_keep_their_order_whether_a_module_is_loaded_before_or_after(loading: str) -> None:
    lines = f"""
{loading}
def add(name):
    return lambda orig, *arguments: (orig(*arguments) if name > "a" else "") + name
seams.wrap_late("mercurial.repair", "strip", add("a"))
seams.wrap_late("mercurial.repair", "strip", add("b"))
from mercurial import repair
extensions.wrapfunction(repair, "strip", add("c"))
{CALL}
"""
    assert run(lines) == "abc\n"


@pytest.mark.processes
@pytest.mark.parametrize("arguments", [[], ["--port", "8000"]])
def test_any_other_process_wraps_at_once(arguments: list[str]) -> None:
    assert run("wrap('ours'); print(is_loaded())", arguments) == "True\n"


@pytest.mark.processes
def test_a_mercurial_that_was_not_tested_is_wrapped_at_once() -> None:
    assert run("versions.RUNNING = (99, 0); wrap('ours'); print(is_loaded())") == "True\n"


@pytest.mark.processes
def test_a_module_that_cannot_be_wrapped_late_stays_without_functions() -> None:
    lines = """
seams.SEAMS["mercurial.repair"]["strip"] = "other parameters"
wrap("ours")
from mercurial import repair
for attempt in (1, 2):
    try:
        repair.strip
    except (seams.MissingSeam, AttributeError) as problem:
        print(type(problem).__name__)
"""
    assert run(lines).split() == ["MissingSeam", "AttributeError"]


def test_a_thread_waits_until_a_part_of_the_set_up_that_another_does_is_complete():
    setup, begun, go_on, done = seams.Setup("pushlog"), threading.Event(), threading.Event(), []

    def first():
        begun.set()
        assert go_on.wait(60)
        done.append("first")

    with ThreadPoolExecutor() as pool:
        one = pool.submit(setup.run, first)
        assert begun.wait(60)
        two = pool.submit(setup.run, lambda: done.append("second"))
        with contextlib.suppress(TimeoutError):
            two.result(0.2)
        go_on.set()
        one.result(60)
        two.result(60)
    assert done == ["first", "second"]
