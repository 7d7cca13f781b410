# SPDX-License-Identifier: GPL-2.0-or-later
"""The outbox: a repository's events until the log has them.

The file of an outbox (`file`) is in the repository's store; it has each event from the commit of its transaction on. This module
imports nothing: Mercurial loads modules lazily, and would load a module twice that its own package imports.
"""
