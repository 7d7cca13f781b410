# SPDX-License-Identifier: GPL-2.0-or-later
"""The dashboard: pages that show how far everything is. Reads the log, changes nothing.

watcher     one thread follows the log and makes a view of it      readers      who may read, and which names
recent      the newest events, and when they were released         drawing      the picture of a timeline (pure)
view        what the pages show (pure)                             application  the pages; `server` serves them
"""
