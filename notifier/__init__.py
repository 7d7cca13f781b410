# SPDX-License-Identifier: GPL-2.0-or-later
"""The notifier: publishes the log's notices to destinations.

Each destination gets its messages in order per repository, at least once, and independently of the others.

message     what a notice says in public (pure)          publisher   the daemon
public      what is public, and under which URL (pure)   destination the port, and the table of destinations
window      what to send next, and what is done (pure)   jsonlines, pulse, sns, webhook, hgpush, decode   the destinations
courier     the loop of one destination                  orders      what operators asked of it

Services of their own: `edge`, `decode`, `poll`, `work`, `guardian`.
"""
