# SPDX-License-Identifier: GPL-2.0-or-later
"""How messages are delivered, to any destination.

`destination` is the port, `window` decides what goes next, and `rejects` keeps what cannot be delivered.
"""
