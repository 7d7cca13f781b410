# SPDX-License-Identifier: GPL-2.0-or-later
"""Webhooks: messages to the endpoints of subscribers, which a database keeps until each is delivered."""
