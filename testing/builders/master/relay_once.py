# SPDX-License-Identifier: GPL-2.0-or-later
"""A relay that comes up and looks at everything once: `python -m testing.builders.master.relay_once ROOT LOG [now]`.

In a process of its own, because a relay loads none of Mercurial's extensions and a test does. It looks once if `now` is given, else
once for each line that it reads, and answers each time with one line: `null`, or as JSON what went wrong.
"""

import json
import sys
import traceback

from hgext.vcsreplicator.hg.relaying import MasterRepositories
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.outbox.file import Outbox
from hgext.vcsreplicator.relay.scan import find_repositories
from hgext.vcsreplicator.relay.sending import EventSender

SOURCE = "hg://master"


def look(root: str, url: str) -> None:
    """Finishes what was interrupted, and sends what was not sent."""
    repositories = MasterRepositories({root: ""}, SOURCE)
    problems = repositories.finish(root)
    assert problems == [], problems
    with open_log(url, creates=True) as log:
        sender = EventSender(log=log, source=SOURCE, make_bundle=repositories.make_bundle, store_blob=None)
        aside = f"{root}/.vcsreplicator/deleted"
        for folder in (*find_repositories(root), *find_repositories(aside)):
            repositories.recover(folder)
            if not folder.startswith(aside):
                assert repositories.announce(folder), "another process holds the lock"
            box = Outbox(repositories.open(folder).svfs)
            with box.sending(wait=False) as alone:
                assert alone, "another process is sending"
                sender.send(folder, box)


def main(root: str, url: str, *now: str) -> None:
    """As the module says; looking at once, a problem is an exception."""
    if now:
        look(root, url)
        return
    for _ in sys.stdin:
        problem = None
        try:
            look(root, url)
        except Exception:
            problem = traceback.format_exc()
        print(json.dumps(problem), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
