# SPDX-License-Identifier: GPL-2.0-or-later
"""The destinations, one file or folder each.

`state` has what operators ask of them, and their condition.
"""
