# SPDX-License-Identifier: GPL-2.0-or-later
"""What worker processes of a mirror do for many repositories at once.

They fill a new mirror, or compare a mirror with the master.
"""
