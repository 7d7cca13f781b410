# SPDX-License-Identifier: GPL-2.0-or-later
"""The poller: follows json-pushes of hosts that do not run our extensions.

It sends their pushes to the queue of hg-push.

`poller` is the daemon, `following` decides what an answer means.
"""
