# SPDX-License-Identifier: GPL-2.0-or-later
"""Webhooks: messages to the endpoints of subscribers.

A database keeps each message until it is delivered.
"""
