# SPDX-License-Identifier: GPL-2.0-or-later
"""The graphs: `history` keeps samples of a week, `curves` draws them."""
