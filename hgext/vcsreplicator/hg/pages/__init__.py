# SPDX-License-Identifier: GPL-2.0-or-later
"""What masters and mirrors change in Mercurial's own pages and wire commands."""
