# SPDX-License-Identifier: GPL-2.0-or-later
"""The worker: takes the messages of hg-push, keeps clones, and fills a database with pushes, changesets, files and branches.

settings   the section [work]                          commandserver   a Mercurial in a process of its own
schema     the tables                                  clones          local clones, and what is in their changesets
database   open, migrate, record                       lanes           messages by repository, and their retries
listing    read what was recorded                      parking         messages that wait in the database
deadletters, reporting   where failures go             worker          takes, records, acknowledges
"""
