# SPDX-License-Identifier: GPL-2.0-or-later
"""The outbox: a repository's events, in its store, from the commit of their transaction until the log has them (`file`).

Nothing is imported here: Mercurial loads modules lazily, and would load a module twice that its own package imports.
"""
