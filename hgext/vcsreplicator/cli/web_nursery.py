# SPDX-License-Identifier: GPL-2.0-or-later
"""A process that forks the workers of `vcsreplicator web`.

python -m hgext.vcsreplicator.cli.web_nursery DESCRIPTOR ROOT ROLE SECONDS BYTES
"""

import gc
import socket
import sys

from ..mirror.forking import Forks
from ..words.errors import BadConfig
from .verbs import load_structlog


def main() -> None:
    """Fork a worker for each descriptor, or report why the folder cannot be served."""
    forks = Forks()
    root, role, seconds, size = sys.argv[2:]
    load_structlog()
    from ..hg.serving.budget import Budget
    from ..service import configure_logging
    from ..service.worker import answer_requests, ask_to_write
    from .web import open_folder

    configure_logging(role)
    try:
        web = open_folder(root)
    except BadConfig as problem:
        forks.refuse(str(problem))
        return
    from ..hg.serving.web import find_pushes

    gc.collect()
    gc.freeze()

    def work(descriptor: int) -> None:
        connection = socket.socket(fileno=descriptor)
        budget = Budget(int(seconds), int(size), lambda: ask_to_write(connection))
        answer_requests(connection, web, budget.begin, budget.renew)

    forks.make(work, says=find_pushes(root).value)


if __name__ == "__main__":
    main()
