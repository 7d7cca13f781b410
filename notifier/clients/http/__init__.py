# SPDX-License-Identifier: GPL-2.0-or-later
"""HTTP as several destinations speak it."""
