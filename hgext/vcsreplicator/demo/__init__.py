# SPDX-License-Identifier: GPL-2.0-or-later
"""A complete installation on one machine, for the demo, tests and benchmarks.

`layout` writes the files and lists the services, `preparation` adds topics and mirrors, `supervisor` keeps the services running,
and `scenario` pushes to the master.
"""
