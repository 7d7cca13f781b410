# SPDX-License-Identifier: GPL-2.0-or-later
"""hg-push: the destination that sends pushes to one durable AMQP queue."""
