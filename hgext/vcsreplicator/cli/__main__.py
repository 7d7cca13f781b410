# SPDX-License-Identifier: GPL-2.0-or-later
"""`python -m hgext.vcsreplicator.cli`: the same as the console command."""

from . import main

main()
