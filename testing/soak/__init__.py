# SPDX-License-Identifier: GPL-2.0-or-later
"""Hours of pushes to real services, and whether what these use stays flat."""
