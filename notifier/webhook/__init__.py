# SPDX-License-Identifier: GPL-2.0-or-later
"""Webhooks: messages to the endpoints of subscribers, kept in a database until each is delivered."""
