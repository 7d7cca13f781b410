# SPDX-License-Identifier: GPL-2.0-or-later
"""Services of their own; none imports another."""
