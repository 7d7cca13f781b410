# SPDX-License-Identifier: GPL-2.0-or-later
"""What worker processes of a mirror do for many repositories at once: fill a new mirror, compare it with the master."""
