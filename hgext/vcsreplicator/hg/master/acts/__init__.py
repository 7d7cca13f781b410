# SPDX-License-Identifier: GPL-2.0-or-later
"""Acts of an operator that are events of their own: strip, delete, rename, adopt; noted before, finished after a kill."""
