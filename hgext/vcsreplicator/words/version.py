# SPDX-License-Identifier: GPL-2.0-or-later
"""The version of this distribution, read by packaging and printed by the commands."""

VERSION = "0.1.0"
