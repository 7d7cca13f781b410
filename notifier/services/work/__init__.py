# SPDX-License-Identifier: GPL-2.0-or-later
"""The worker, which records announced pushes in a database.

It takes the messages of hg-push, keeps clones, and records pushes, changesets, files and branches.

`worker` is the daemon, `tasks` its parallel variant, and `backlog` decides which message is worked on.
"""
