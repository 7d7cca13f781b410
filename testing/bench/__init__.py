# SPDX-License-Identifier: GPL-2.0-or-later
"""The benchmarks: one module each, with a function `rows()`."""
