# SPDX-License-Identifier: GPL-2.0-or-later
"""A master's repositories: each transaction commits with an event of its changes."""
