# SPDX-License-Identifier: GPL-2.0-or-later
"""The serving of a mirror: clients see the release, and nothing else."""
