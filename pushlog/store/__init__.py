# SPDX-License-Identifier: GPL-2.0-or-later
"""The storage of pushes.

Pushes are in a file that commits with Mercurial's transaction, and in the SQLite database behind it.
"""
