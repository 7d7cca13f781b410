# SPDX-License-Identifier: GPL-2.0-or-later
"""The version of this distribution.

Packaging reads it, and the commands print it.
"""

VERSION = "0.1.0"
