# SPDX-License-Identifier: GPL-2.0-or-later
"""A notifier at work in this process, and a scripted destination.

A test decides the outcome of each message.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hgext.vcsreplicator.log import ERRORS, NOTICES, Log
from hgext.vcsreplicator.log.requests import OperatorRequest
from hgext.vcsreplicator.log.table import find_beginnings, read_records
from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import ReplicationError
from hgext.vcsreplicator.words.records import ErrorRecord
from hgext.vcsreplicator.words.retry import Backoff
from hgext.vcsreplicator.words.shape import from_json
from notifier.delivery.destination import DOCUMENTED, DeliveryOutcome, DestinationSettings
from notifier.delivery.window import Delivery, Patience
from notifier.destinations.state import Kind, StateDatabase
from notifier.messages.message import Message
from notifier.messages.public import PublicSettings
from notifier.publishing import publisher
from notifier.publishing.position import group
from notifier.publishing.settings import NotifierSettings
from testing.waiting import PATIENCE, eventually

# The webhook destination `hooks` in a services' file, and its subscription `ci`.
HOOKS = """
[notifier.hooks]
type = "webhook"
database = "{folder}/deliveries.db"
allow = ["127.0.0.0/8"]
allow-http = true
"""
SUBSCRIPTION = """
[notifier.hooks.subscriptions.ci]
url = "{url}"
types = ["changegroup.1"]
"""
# A services' file with the destinations `lines` and `hooks`.
FILE = f"""
log = "sqlite://{{folder}}/log.db"
[public.urls]
"" = "https://hg.example/"
[notifier]
state = "{{folder}}/notifier.db"
[notifier.lines]
type = "jsonlines"
file = "{{folder}}/lines"
{HOOKS}ladder = [0, 0.05]
"""
PUBLIC = PublicSettings(urls={"": "https://hg.example/"}, ignore=("private/",))


class Notifier:
    """Destinations at work; `stop` drains them, and it may be started again.

    Another one beside it needs a `host` and an `instance` of its own.
    """

    def __init__(
        self,
        log: Log,
        folder: Path,
        *,
        host: str = "here",
        instance: str | None = None,
        takeover_after: float = 10.0,
    ) -> None:
        self.log, self.folder, self._host, self._instance = log, folder, host, instance
        self._takeover_after = takeover_after
        self.state = StateDatabase(str(folder / "notifier.db"))
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, **destinations: DestinationSettings) -> None:
        """Start it, and return once it is ready."""
        named = {name.replace("_", "-"): settings for name, settings in destinations.items()}
        settings = NotifierSettings(
            public=PUBLIC,
            destinations=named,
            state=str(self.folder / "notifier.db"),
            takeover_after=self._takeover_after,
        )
        ready = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(settings, ready))
        self._thread.start()
        assert ready.wait(PATIENCE)
        if self.error is not None:
            raise self.error

    def _run(self, settings: NotifierSettings, ready: threading.Event) -> None:
        try:
            publisher.run(
                settings, self.log, stop=self._stop, ready=ready.set, host=self._host, instance=self._instance
            )
        except BaseException as error:
            self.error = error
        finally:
            ready.set()

    def stop(self) -> None:
        """Drain and return."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join(PATIENCE)
            assert not self._thread.is_alive()

    def position(self, name: str) -> int | None:
        return self.log.stored(group(name), NOTICES).get(0)

    def settled(self, name: str) -> None:
        """Wait until the destination's position is the end of the notices."""
        eventually(lambda: self.position(name) == self.log.ends(NOTICES)[0], f"{name} to settle everything")

    def errors(self) -> list[ErrorRecord]:
        """Return what is in the topic `errors`."""
        records = read_records(self.log, find_beginnings(self.log, ERRORS))
        return [from_json(ErrorRecord, record.value or b"") for record in records]

    def ask(self, name: str, kind: Kind, **argument: Any) -> OperatorRequest:
        """Ask as an operator would, and return the request once it is carried out."""
        number = self.state.requests.ask(name, kind, argument, who="dana", now=time.time())
        eventually(lambda: self.state.requests.read(number).done_at is not None, f"{kind} to be carried out")
        return self.state.requests.read(number)


FAST = Patience(attempts=3, retry=Backoff(first=0.01, longest=0.05))

Answer = Callable[[Message], ReplicationError | None]


@dataclass(slots=True, kw_only=True)
class Scripted:
    """Settings and destination in one.

    `got` is what was confirmed, `tried` what was submitted.

    `answer` decides what becomes of a message, unless `answer_wait` answers each wait of so many seconds; everything raises `down`
    while there is one; while `hold` is set nothing is answered.
    """

    answer: Answer = lambda message: None
    answer_wait: Callable[[float], Sequence[DeliveryOutcome]] | None = None
    down: ReplicationError | None = None
    hold: threading.Event = field(default_factory=threading.Event)
    got: list[Message] = field(default_factory=list)
    tried: list[Message] = field(default_factory=list)
    types: tuple[str, ...] = DOCUMENTED
    start_at: str = "beginning"
    patience: Patience = FAST
    submitted: list[Delivery] = field(default_factory=list)

    def open(self, name: str, clock: Clock, log: Log) -> "Scripted":
        self.submitted = []
        return self

    def start(self) -> None:
        if self.down is not None:
            raise self.down

    def submit(self, delivery: Delivery) -> None:
        self.start()
        self.tried.append(delivery.message)
        self.submitted.append(delivery)

    def outcomes(self, timeout: float) -> Sequence[DeliveryOutcome]:
        if self.answer_wait is not None:
            return self.answer_wait(timeout)
        if self.hold.is_set():
            threading.Event().wait(timeout)
            return []
        submitted, self.submitted = self.submitted, []
        found = [DeliveryOutcome(number=delivery.number, error=self.answer(delivery.message)) for delivery in submitted]
        self.got += [d.message for d, outcome in zip(submitted, found, strict=True) if outcome.error is None]
        return found

    def close(self) -> None:
        pass

    def told(self, path: str) -> list[int]:
        """Return the confirmed sequences of one repository, in order."""
        return [message.sequence for message in self.got if message.repo_url.endswith("/" + path)]
