# SPDX-License-Identifier: GPL-2.0-or-later
"""hg-push: pushes as messages of one durable AMQP queue, and the destination that sends them."""
