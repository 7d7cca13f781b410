# SPDX-License-Identifier: GPL-2.0-or-later
"""AMQP 0-9-1: connections with a limit on every wait, a channel of confirmed messages, and a consumer of one queue."""
