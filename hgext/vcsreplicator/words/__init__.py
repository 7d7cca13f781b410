# SPDX-License-Identifier: GPL-2.0-or-later
"""The vocabulary that all packages share: events, records, paths, errors, values.

Pure: its modules need only the standard library, and `rules` also RE2.
"""
