# SPDX-License-Identifier: GPL-2.0-or-later
"""`status` and `check` ask a running dashboard instead of reading the log.

The dashboard has read the log already, so it answers at once. It declines if its answer might be less accurate than a reading; then
the verb reads the log itself, as it does without a dashboard.

The conversation, over a Unix stream socket: the verb sends one JSON object and ends its side, the dashboard sends one and closes.
Each end waits PATIENCE seconds at most, and trusts only the users that it expects. `question` asks, `server` answers.
"""
