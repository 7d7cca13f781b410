# SPDX-License-Identifier: GPL-2.0-or-later
"""A decoder in a process of its own, to be killed.

`python -m testing.builders.notifier.decoder_process LOG SETTINGS`, settings as JSON with names of members.
"""

import json
import sys

import structlog

from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.service import stop_on_signals
from hgext.vcsreplicator.words import shape
from notifier.services.decode import streaming
from notifier.services.decode.settings import DecodeSettings


def main() -> None:
    settings = shape.read(DecodeSettings, json.loads(sys.argv[2]))
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    stop = stop_on_signals()
    with open_log(sys.argv[1], creates=True) as log:
        streaming.run(settings, log, stop=stop, ready=lambda: print("ready", flush=True))


if __name__ == "__main__":
    main()
