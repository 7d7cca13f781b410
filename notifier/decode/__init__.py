# SPDX-License-Identifier: GPL-2.0-or-later
"""The decoder: submitted messages are validated and enriched, and what identifies a person is removed.

decoding    one message, decoded or rejected (pure)      rejection   why, without anything private (pure)
payload     compression and JSON (pure)                  metadata    what is added to a message (pure)
geo         addresses to places                          agent       user agents to names and versions
documents   JSON Schemas of the documents                repeats     ids that were delivered
sources     topic or queue that is read                  routing     topics, queues and files that are written
streaming   the daemon                                   rejects     rejects in the topic errors (pure)
batch       files, for backfill                          queues      the connection to an AMQP broker
settings    the section [decode]
"""
