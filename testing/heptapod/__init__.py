# SPDX-License-Identifier: GPL-2.0-or-later
"""A Heptapod host without GitLab: its packages from their index, our extension beside them."""
