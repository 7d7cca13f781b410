# SPDX-License-Identifier: GPL-2.0-or-later
"""Programs that the contract suite of the log runs in processes of their own, to kill them.

python log_programs.py append URL FIRST     appends FIRST, FIRST+1, … to topic events, prints each when it is durable
python log_programs.py copy URL             copies events to notices, one transaction a poll, prints how far it is
python log_programs.py commit URL           becomes the transactor "single", then commits once for each line on its input
"""

import sys

from hgext.vcsreplicator.log import EVENTS, NOTICES, Log, NewRecord
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.words.errors import Fenced, Unavailable

GROUP = "copier"


def say(*words: object) -> None:
    print(*words, flush=True)


def append(log: Log, first: str) -> None:
    number = int(first)
    while True:
        try:
            log.append([NewRecord(topic=EVENTS, key="x", value=b"%d" % number)], timeout=2)
        except Unavailable:
            continue
        say(number)
        number += 1


def copy(log: Log) -> None:
    transactor = log.transactor(GROUP)  # first: it ends what its predecessor left open
    stored = log.stored(GROUP, EVENTS)
    start = {(EVENTS, number): stored.get(number, 0) for number in range(log.partitions(EVENTS))}
    reader = log.reader(start)
    say("ready")
    while True:
        records = reader.poll(1, limit=3)
        if records:
            copies = [NewRecord(topic=NOTICES, key=record.key, value=record.value) for record in records]
            transactor.commit(copies, group=GROUP, positions=reader.positions())
            say("copied", len(copies))


def commit(log: Log) -> None:
    transactor = log.transactor("single")
    say("ready")
    for line in sys.stdin:
        try:
            transactor.commit([NewRecord(topic=NOTICES, key="x", value=line.strip().encode())])
        except Fenced:
            say("fenced")
        except Unavailable:
            say("unavailable")
        else:
            say("committed")


if __name__ == "__main__":
    program, url, *rest = sys.argv[1:]
    with open_log(url, creates=True) as opened:
        {"append": append, "copy": copy, "commit": commit}[program](opened, *rest)
