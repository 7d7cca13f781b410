# SPDX-License-Identifier: GPL-2.0-or-later
"""A master's repositories: each transaction is captured, and its event commits with it."""
