# SPDX-License-Identifier: GPL-2.0-or-later
"""The dashboard: pages that show progress, and forms by which operators act.

watcher     one thread follows the log and makes a view of it      readers      who may read, which names, and who may act
recent      the newest events, and when they were released         drawing      the picture of a timeline (pure)
view        what the pages show (pure)                             application  the pages; `server` serves them
acts        what an operator does, and the journal of it           acting       forms and the answer to one: record, do, record
deliveries  what the notifier's databases say                      asked/       the answers to `status` and `check`
"""
