# SPDX-License-Identifier: GPL-2.0-or-later
"""The record of the newest promotion, which fences the relays of former masters."""

from contextlib import closing

from ..log import SERVICES, Log, NewRecord
from ..log.table import read_table
from ..outbox.file import Fork
from ..words.errors import BadConfig, Fenced, Refused
from ..words.records import MASTER_KEY, MasterRecord
from ..words.shape import to_json, try_json

# In the reason why a former master refuses pushes, behind the source of the new one.
IS_MASTER = " is the master now"


def read_master(log: Log) -> MasterRecord | None:
    """Read the newest promotion; None if there was none, or the log has no such topic.

    A record that cannot be read is none, so that it stops no push. Raises Unavailable.
    """
    try:
        return try_json(MasterRecord, read_table(log, SERVICES).value(SERVICES, MASTER_KEY))
    except BadConfig:
        return None


def fork_of_former(newest: MasterRecord | None, source: str) -> Fork | None:
    """Return why all repositories of a master refuse pushes: a promotion replaced it; None if none did."""
    if newest is None or source not in newest.replaces:
        return None
    return Fork(reason=f"{newest.source}{IS_MASTER}")


def claim(log: Log, wanted: MasterRecord, expected: MasterRecord | None) -> None:
    """Record a promotion, if the newest one is still the `expected` one.

    Of several processes that call this at the same time one succeeds. Raises Refused for the others, having written nothing.
    """
    with closing(log.transactor(MASTER_KEY)) as transactor:
        known = read_master(log)
        if known != expected:
            raise Refused(f"{known.source if known else 'another mirror'} was promoted meanwhile")
        try:
            transactor.commit([NewRecord(topic=SERVICES, key=MASTER_KEY, value=to_json(wanted))])
        except Fenced as error:
            raise Refused("another promotion runs at the same time: look who is master, then try again") from error
