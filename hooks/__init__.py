# SPDX-License-Identifier: GPL-2.0-or-later
"""Server policies, one per file, each usable alone from hgrc.

`docs/hooks.md` shows how.
"""
