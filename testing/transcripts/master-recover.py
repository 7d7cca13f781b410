# SPDX-License-Identifier: GPL-2.0-or-later
"""For transcripts: rolls back what a kill left in one repository, as the relay does at each look."""

import sys

from hgext.vcsreplicator.hg.relaying import MasterRepositories

if MasterRepositories({sys.argv[1]: ""}, "hg://master").recover(f"{sys.argv[1]}/{sys.argv[2]}"):
    print("rolled back")
