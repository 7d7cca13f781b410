# SPDX-License-Identifier: GPL-2.0-or-later
"""Mirrors under test, their supervisor alone, and a master reduced to what a mirror sees of it."""
