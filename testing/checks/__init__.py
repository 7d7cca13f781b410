# SPDX-License-Identifier: GPL-2.0-or-later
"""What says whether every promise was kept."""
