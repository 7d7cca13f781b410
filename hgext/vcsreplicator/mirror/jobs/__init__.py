# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs of a mirror's worker processes for many repositories at once.

They fill a new mirror, or compare a mirror with the master.
"""
