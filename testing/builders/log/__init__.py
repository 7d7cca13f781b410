# SPDX-License-Identifier: GPL-2.0-or-later
"""Logs in memory, and where the log under test lives."""
