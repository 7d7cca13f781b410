# SPDX-License-Identifier: GPL-2.0-or-later
"""`python -P -m hgext.vcsreplicator.hg.trusted`: `hg` for accounts that share repositories.

Mercurial reads a repository's hgrc, and loads its extensions, before ours. Here the rule holds from the first file on.
"""

import os
import sys

import hgdemandimport


def main() -> None:
    """Run `hg` with the arguments of this process, and exit."""
    hgdemandimport.enable()
    from mercurial import dispatch

    from . import rule

    rule.install()
    sys.argv[0] = os.path.join(os.path.dirname(sys.executable), "hg")  # what hooks call
    dispatch.run()


if __name__ == "__main__":
    main()
