# SPDX-License-Identifier: GPL-2.0-or-later
"""Where pushes are kept: the file that commits with Mercurial's transaction, and the SQLite database behind it."""
