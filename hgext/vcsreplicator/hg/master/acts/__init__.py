# SPDX-License-Identifier: GPL-2.0-or-later
"""Acts of an operator that are events of their own: strip, delete, rename, adopt.

A strip, a deletion and a rename are noted before, and finished after a kill.
"""
