# SPDX-License-Identifier: GPL-2.0-or-later
"""`status` and `check` ask a running dashboard instead of reading the log.

The dashboard has read it already, so it answers at once. It declines where its answer might not be as true as what the verb would
read, and the verb then reads the log itself, as it does without a dashboard.

The conversation, over a Unix stream socket: the verb sends one JSON object and ends its side, the dashboard sends one and closes
(`question` has both). Each end waits PATIENCE seconds at most, and trusts only the users that it expects. `client` asks, `server`
answers.
"""
