# SPDX-License-Identifier: GPL-2.0-or-later
"""The worker, which fills a database with what hg-push announces.

It takes the messages of hg-push, keeps clones, and records pushes, changesets, files and branches.

`worker` is the daemon, `tasks` its parallel variant, and `lanes` decides which message is worked on.
"""
