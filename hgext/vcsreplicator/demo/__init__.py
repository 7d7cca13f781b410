# SPDX-License-Identifier: GPL-2.0-or-later
"""A whole installation on one machine: what `vcsreplicator demo`, the tests and the benchmarks run on.

`layout` writes the files and says which services there are, `supervisor` keeps them running, `scenario` pushes through them.
"""
