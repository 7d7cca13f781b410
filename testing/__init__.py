# SPDX-License-Identifier: GPL-2.0-or-later
"""What tests and benchmarks stand on: real services, faults, a hand clock. Never installed with the project."""
