# SPDX-License-Identifier: GPL-2.0-or-later
"""A mirror's repositories, and the worker that applies events and heals them."""
