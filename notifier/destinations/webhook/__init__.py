# SPDX-License-Identifier: GPL-2.0-or-later
"""Webhooks: messages to subscribers' endpoints, kept until they are delivered."""
