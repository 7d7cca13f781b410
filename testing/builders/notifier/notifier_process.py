# SPDX-License-Identifier: GPL-2.0-or-later
"""A notifier in a process of its own, to be killed.

`python -m testing.builders.notifier.notifier_process FILE LOG [UNTIL]`.

FILE holds the tables `public` and `notifier` as JSON. It ends on SIGTERM, or by itself once every destination's
position is UNTIL.
"""

import json
import sys
import threading
from pathlib import Path

from hgext.vcsreplicator.log import NOTICES
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.service import stop_on_signals
from notifier.publishing import publisher, settings
from notifier.publishing.position import group


def main() -> None:
    tables = json.loads(Path(sys.argv[1]).read_text())
    made = settings.read(tables, sys.argv[1])
    until = int(sys.argv[3]) if len(sys.argv) > 3 else None
    stop = stop_on_signals()
    with open_log(sys.argv[2], creates=True) as log:

        def watch() -> None:
            groups = [group(name) for name in made.destinations]
            while not stop.wait(0.02):
                if until is not None and all(log.stored(each, NOTICES).get(0, 0) >= until for each in groups):
                    stop.set()

        threading.Thread(target=watch, daemon=True).start()
        publisher.run(made, log, stop=stop, ready=lambda: print("ready", flush=True))


if __name__ == "__main__":
    main()
