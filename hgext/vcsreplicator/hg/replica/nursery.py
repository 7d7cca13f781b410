# SPDX-License-Identifier: GPL-2.0-or-later
"""A process that forks the workers of a mirror.

The workers share what all of them import, and start within milliseconds.

    python -m hgext.vcsreplicator.hg.replica.nursery DESCRIPTOR
"""

import gc
from multiprocessing.connection import Connection

from ...mirror.forking import Forks
from .repository import prepare
from .worker import serve


def main() -> None:
    """Fork a worker for each descriptor."""
    forks = Forks()
    ui = prepare()
    gc.collect()
    gc.freeze()
    forks.make(lambda descriptor: serve(Connection(descriptor), ui))


if __name__ == "__main__":
    main()
