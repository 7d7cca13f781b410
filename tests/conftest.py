# SPDX-License-Identifier: GPL-2.0-or-later
"""Real services for tests that ask for them by name: shared ones over the run, own ones to be destroyed.

`kafka`, `rabbitmq`, `tls_rabbitmq`, `postgresql` and `aws` start when the first test needs them and stop at the end. All tests of
a run share them, also those of several workers (`pytest -n 6`), so each uses names of its own: `unique_name`, or
`rabbitmq.vhost()`. A test that kills, pauses or restarts takes `own_service(Kafka)`.
"""

import argparse
import fcntl
import gc
import os
import random
import re
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings

from testing.faults.system import System
from testing.log_lines import write_every_line
from testing.reporting import report_what_is_shown
from testing.scheduling import ModuleScheduling, has_many_examples, is_run_whole
from testing.services.aws import Aws
from testing.services.cache import cache_folder
from testing.services.existing import Existing, Kept, keeper, list_slow_starts, own, shared
from testing.services.kafka import Kafka
from testing.services.postgresql import PostgreSQL
from testing.services.process import Service
from testing.services.rabbitmq import RabbitMQ, RabbitMQOfTest, TlsRabbitMQ

# Hypothesis' own defaults, but no example fails because the machine is loaded. `make check` wants an answer in seconds, not after
# the minutes in which a failing example is made smaller; `make test`, whose examples are the same each time, takes a quarter.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quarter", settings.get_profile("patient"), max_examples=25)
settings.register_profile(
    "quick", settings.get_profile("patient"), max_examples=3, phases=set(Phase) - {Phase.shrink, Phase.explain}
)
settings.load_profile("patient")

# What a shell starts in the background ignores this signal, as would all that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

SERVICE_FIXTURES = {"kafka", "rabbitmq", "tls_rabbitmq", "postgresql", "aws", "own_service"}
# What starts services or processes; all else decides by itself, without a clock: it fails for a reason.
IMPURE = ("services", "processes")
# A module whose tests all have such a mark, in the text: `make check` does not import it, nor the clients and builders it uses.
ALL_IMPURE = re.compile(rf"^pytestmark = (\[[^\]]*)?pytest\.mark\.({'|'.join(IMPURE)})\b", re.MULTILINE)
# A module whose tests wait for other threads, in the text: a machine that stalls may fail them too, though they start no process.
USES_THREADS = re.compile(r"\b(eventually|threading\.Thread|ThreadPoolExecutor)\(")
# Where tests take seconds each, the longest first.
LONG = (
    "testing",
    "flow",
    "operate",
    "test_transcripts.py",
    "house",
    "hg",
    "mirror",
    "relay",
    "demo",
    "log",
    "notifier",
    "aggregator",
    "cli",
    "pushlog",
)
# Seconds of a slow test that names no limit: it makes thousands of steps, which take 20 s alone and minutes beside others.
LIMIT_OF_SLOW = 1800
AnyService = TypeVar("AnyService", bound=Service)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Have Hypothesis draw by the seed of the run."""
    seed_hypothesis(config.option)


def seed_hypothesis(option: argparse.Namespace) -> None:
    """Take VCSREPLICATOR_TEST_SEED for `--hypothesis-seed`, unless that is given."""
    if option.hypothesis_seed is None:
        option.hypothesis_seed = os.environ.get("VCSREPLICATOR_TEST_SEED")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Keep the services of a run with several workers, in the process that starts the workers."""
    if isinstance(asked := getattr(getattr(config, "failures_db", None), "sock", None), socket.socket):
        # A worker asks for each test whether it ran before: two small writes, of which the second waits 40 ms otherwise.
        asked.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    report_what_is_shown(config)
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        kept = ExitStack()
        services = kept.enter_context(keeper())
        if is_whole(config):
            services.begin(*list_slow_starts())  # one processor is idle while another imports the tests
        config.add_cleanup(kept.close)


def is_whole(config: pytest.Config) -> bool:
    """Tell whether a run has all tests, or all but the slow ones."""
    has_all_folders = config.args_source == pytest.Config.ArgsSource.TESTPATHS
    return has_all_folders and not config.option.keyword and config.option.markexpr in ("", "not slow")


@contextmanager
def after_the_first() -> Iterator[None]:
    """Wait until the first worker has imported, and in a new clone compiled, all tests: then the others read what it wrote."""
    with (cache_folder() / "collection.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Import the tests without looking for garbage, which takes a fifth of the time, and never look at what was imported again."""
    gc.disable()
    try:
        with after_the_first() if hasattr(session.config, "workerinput") else nullcontext():
            return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out modules of which `-m` would select no test, before they are imported."""
    terms = config.option.markexpr.split(" and ")
    is_pure = {f"not {mark}" for mark in IMPURE} <= set(terms) and all(
        re.fullmatch(r"(not )?\w+", term) for term in terms
    )
    if is_pure and collection_path.name.startswith("test_") and ALL_IMPURE.search(collection_path.read_text()):
        return True
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that use a service (`-m "not services"` runs the rest); long ones come first.

    Several workers end together if what is left at the end is short.
    """
    draw_samples(items)
    for item in items:
        if SERVICE_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("services")
    give_slow_tests_time(items)
    items.sort(key=_rank)


def give_slow_tests_time(items: Sequence[pytest.Item]) -> None:
    """Let slow tests that name no limit take LIMIT_OF_SLOW."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LIMIT_OF_SLOW))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Mark tests for a second look in the process that runs them, which may not be the one that collected them."""
    give_second_looks(session.config.option, session.items)


def give_second_looks(option: argparse.Namespace, items: Sequence[pytest.Item]) -> None:
    """Mark the tests that run again when they fail, as `--reruns` asks for all: those of processes and threads that do not hunt.

    Taken from the others, the option costs them nothing: else a worker asks three times for each test how often it ran.
    """
    reruns, option.reruns = getattr(option, "reruns", None), None
    uses_threads = cache(lambda path: bool(USES_THREADS.search(path.read_text())))
    for item in items if reruns else ():
        may_stall = any(map(item.get_closest_marker, IMPURE)) or uses_threads(item.path)
        if may_stall and not item.get_closest_marker("hunt"):
            item.add_marker(pytest.mark.flaky(reruns=reruns))


def draw_samples(items: Sequence[pytest.Item]) -> None:
    """Leave the cases of a test that is marked `sample` to `make test-all`, but for so many, the same for the same seed.

    Those whose names hold a text of `keep` stay. With VCSREPLICATOR_TEST_WHOLE all stay.
    """
    if os.environ.get("VCSREPLICATOR_TEST_WHOLE"):
        return
    families: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sample") and not item.get_closest_marker("slow"):
            families.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for test, cases in families.items():
        sample = next(cases[0].iter_markers("sample"))
        chance = random.Random(f"{os.environ.get('VCSREPLICATOR_TEST_SEED')} {test}")
        keep = sample.kwargs.get("keep", ())
        others = [case for case in cases if not any(text in case.nodeid for text in keep)]
        for case in chance.sample(others, min(len(others), max(0, len(cases) - sample.args[0]))):
            case.add_marker("slow")


def _rank(item: pytest.Item) -> int:
    """Where a test stands in a run: modules that one worker runs come first, tests that start nothing last."""
    if not any(map(item.get_closest_marker, IMPURE)):
        return len(LONG) + 1 + (not has_many_examples(item.path))
    if is_run_whole(item.path):
        return -1
    return next((rank for rank, name in enumerate(LONG) if name in item.path.parts), len(LONG))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ModuleScheduling | None:
    """Run modules whose tests share what they make by one worker each, in a whole run."""
    return ModuleScheduling(config, log) if config.getvalue("dist") == "loadscope" else None


@pytest.fixture
def told(record_property: Callable[[str, object], None]) -> Callable[[object], None]:
    """Print what a test counted at the end of the run, also when all tests pass: `told(count)`."""
    return lambda counted: record_property("told", str(counted))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the tests counted."""
    for report in terminalreporter.getreports("passed"):
        for name, text in report.user_properties:
            if (report.when, name) == ("call", "told"):
                terminalreporter.write_line(text)


@pytest.fixture(scope="session", autouse=True)
def environment_of_tests() -> Iterator[None]:
    """Give every run the same environment: no settings of a user reach Mercurial, no credentials reach a real account."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("HG", "AWS_"))]:
            patch.delenv(name)
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # every `hg` would compile our modules again
        patch.setenv("HGRCPATH", os.devnull)
        patch.setenv("HGENCODING", "utf-8")
        patch.setenv("USER", "tester")
        patch.setenv("TZ", "UTC")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for name, value in Aws.credentials.items():
            patch.setenv(name, value)
        yield


@contextmanager
def restored_variables() -> Iterator[None]:
    """Restore the variables of Mercurial that services in this process set within the block."""
    before = _variables_of_mercurial()
    yield
    if (after := _variables_of_mercurial()) != before:
        for name in after:
            del os.environb[name]
        os.environb.update(before)


def _variables_of_mercurial() -> dict[bytes, bytes]:
    """The variables whose names begin with HG, as bytes: to decode all the others takes longer than all else of a fixture."""
    return {name: os.environb[name] for name in os.environb if name.startswith(b"HG")}


@pytest.fixture(scope="module", autouse=True)
def traces_of_modules() -> Iterator[None]:
    """Remove what a fixture of a module left, which is set up before anything of its first test."""
    with restored_variables():
        yield


@pytest.fixture(autouse=True)
def traces_of_tests() -> Iterator[None]:
    """Remove what a test left, also where an earlier one that ran a service here sent log lines.

    They go to the process' standard error, never into what a command prints. One fixture for both: each costs all tests.
    """
    write_every_line(sys.__stderr__)
    with restored_variables():
        yield


@pytest.fixture(scope="session")
def kafka() -> Iterator[Kafka | Existing | Kept]:
    with shared(Kafka) as service:
        yield service


@pytest.fixture(scope="session")
def shared_rabbitmq() -> Iterator[RabbitMQ | Existing | Kept]:
    with shared(RabbitMQ) as service:
        yield service


@pytest.fixture
def rabbitmq(shared_rabbitmq: RabbitMQ | Existing | Kept) -> Iterator[RabbitMQOfTest]:
    """The broker of the run; the virtual hosts that a test makes end with it."""
    with closing(RabbitMQOfTest(shared_rabbitmq)) as broker:
        yield broker


@pytest.fixture(scope="session")
def tls_rabbitmq() -> Iterator[TlsRabbitMQ | Kept]:
    with shared(TlsRabbitMQ) as service:
        yield service


@pytest.fixture(scope="session")
def aws() -> Iterator[Aws | Existing | Kept]:
    with shared(Aws) as service:
        yield service


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL | Existing | Kept]:
    with shared(PostgreSQL) as service:
        yield service


@pytest.fixture
def own_service() -> Iterator[Callable[[type[AnyService]], AnyService]]:
    """`own_service(Kafka)` starts one that this test alone uses and may destroy."""
    with ExitStack() as running:
        yield lambda kind: running.enter_context(own(kind))


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    """Calls of the system that fail, and another user, for one test."""
    return System(monkeypatch)


@pytest.fixture
def attentive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A destination with nothing to do sees a request at once."""
    for name in ("courier.IDLE_WAIT", "orders.ASK_EVERY"):
        monkeypatch.setattr(f"notifier.publishing.{name}", 0.1)


@pytest.fixture
def unique_name(request: pytest.FixtureRequest) -> str:
    """For topics, queues and buckets of this test: its name, shortened, and chance."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    return f"{words[:32].strip('-')}-{secrets.token_hex(3)}"
