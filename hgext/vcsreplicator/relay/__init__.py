# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay moves events from the outboxes of a master's repositories to the log.

A push talks to it by `client`, so nothing is imported here. `daemon` is the service.
"""
