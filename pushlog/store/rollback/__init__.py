# SPDX-License-Identifier: GPL-2.0-or-later
"""The rollback of an abandoned transaction, inside its repository alone.

`journalled` decides which names a journal may have, `held` reaches files without following a link, `playback` does what the journal
says.
"""
