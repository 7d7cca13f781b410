# SPDX-License-Identifier: GPL-2.0-or-later
"""Faults strike a real installation under load, observers outside write down what they see, and a judge reads it afterwards.

`table` lists the faults, `strikes` brings them about at a `site`, whose observers (`observing`) write a `history` file. `judge`
reads the file alone, and again whenever it is asked to; `page` makes the table of docs/reliability.md from it.
"""
