# SPDX-License-Identifier: GPL-2.0-or-later
"""Masters and their outboxes, hosts that answer json-pushes, and a relay in a process of its own."""
