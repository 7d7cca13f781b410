# SPDX-License-Identifier: GPL-2.0-or-later
"""The version of this distribution, for packaging and for the commands."""

VERSION = "1.0.0"
