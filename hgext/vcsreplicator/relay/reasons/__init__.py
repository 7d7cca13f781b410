# SPDX-License-Identifier: GPL-2.0-or-later
"""Why jobs fail in repositories, and what many of them have in common."""
