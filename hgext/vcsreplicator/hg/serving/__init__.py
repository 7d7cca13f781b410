# SPDX-License-Identifier: GPL-2.0-or-later
"""What a mirror shows to clients: what was released, and nothing else."""
