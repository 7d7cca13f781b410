# SPDX-License-Identifier: GPL-2.0-or-later
"""A master's repositories, whose changes are captured as events.

Each transaction is captured, and its event commits with it.
"""
