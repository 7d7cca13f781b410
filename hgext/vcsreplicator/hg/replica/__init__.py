# SPDX-License-Identifier: GPL-2.0-or-later
"""A mirror's repositories: the worker that applies events to them, checks them and heals them."""
