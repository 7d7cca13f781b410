# SPDX-License-Identifier: GPL-2.0-or-later
"""The guardian: the broker's own side of Pulse's specification.

management    RabbitMQ's management API          watching   queues that grow: mails, deletions
clients       users, permissions and owners      levels     what the size of a queue means (pure)
checking      a broker held against the specification, by `requirements`, `trial` and `sampling`
"""
