# SPDX-License-Identifier: GPL-2.0-or-later
"""The supervisor's thread and its parts.

`supervisor` wires the parts, and each knows only those that it is given. `state` is what is known, `agenda` which work waits for a
worker or for a time, `intake` and `control` what records mean, `detached` and `healing` what happens to a repository in trouble,
`departures` to one that leaves, `dispatch` what workers get.
"""
