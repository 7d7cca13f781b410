# SPDX-License-Identifier: GPL-2.0-or-later
"""For transcripts: finishes what was interrupted below a root, as the relay does at each look; prints what could not be."""

import sys

from hgext.vcsreplicator.hg.relaying import MasterRepositories

for problem in MasterRepositories({sys.argv[1]: ""}, "hg://master").finish(sys.argv[1]):
    print(problem)
