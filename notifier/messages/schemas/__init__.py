# SPDX-License-Identifier: GPL-2.0-or-later
"""JSON Schemas of all message types, one file each, for receivers."""
