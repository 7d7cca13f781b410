# SPDX-License-Identifier: GPL-2.0-or-later
"""The publisher, which hands notices to every destination.

`publisher` is the daemon, `courier` the loop of one destination, and `orders` does what operators ask.
"""
