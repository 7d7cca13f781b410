# SPDX-License-Identifier: GPL-2.0-or-later
"""A whole installation in one process, one actor's step at a time, with faults between any two calls of the log.

A seed decides all: which actor steps next, how much time passes, which faults strike where. So a violation can be repeated, and its
faults dropped one by one. What decides is the product: the aggregator's sessions, the mirrors' supervisors, the notifiers' turns
and couriers. Played are the log (in memory), the master with its relay, the repositories on mirrors' disks, and the receiver.
"""
