# SPDX-License-Identifier: GPL-2.0-or-later
"""Keeps accounts that share repositories from running code as each other by an hgrc."""
