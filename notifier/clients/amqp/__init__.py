# SPDX-License-Identifier: GPL-2.0-or-later
"""AMQP 0-9-1: connections, a channel of confirmed messages, and a consumer.

Every wait on a connection has a limit; a consumer receives from one queue.
"""
