# SPDX-License-Identifier: GPL-2.0-or-later
"""The worker: takes the messages of hg-push, keeps clones, and fills a database with pushes, changesets, files and branches.

`worker` is the daemon, `tasks` its parallel variant, `lanes` decides which message is worked on.
"""
