# SPDX-License-Identifier: GPL-2.0-or-later
"""The guardian: the broker's own side of Pulse's specification.

`watching` is the daemon, `clients` gives rights, `checking` holds a broker against the specification.
"""
