# SPDX-License-Identifier: GPL-2.0-or-later
"""The embedded log, for one machine: `adapter` and its parts."""
