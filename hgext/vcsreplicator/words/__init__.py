# SPDX-License-Identifier: GPL-2.0-or-later
"""What every room speaks: events, levels, paths, errors, values. Pure: the standard library, and RE2 for rules."""
