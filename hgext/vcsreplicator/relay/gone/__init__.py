# SPDX-License-Identifier: GPL-2.0-or-later
"""Repositories that were removed by hand, and their deletion on mirrors."""
