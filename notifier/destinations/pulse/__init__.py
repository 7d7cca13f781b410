# SPDX-License-Identifier: GPL-2.0-or-later
"""Pulse: messages to an AMQP broker, and the subscriber's side of it."""
