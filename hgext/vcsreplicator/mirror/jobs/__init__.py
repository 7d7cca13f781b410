# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs over many repositories: they fill a new mirror, or compare a mirror."""
