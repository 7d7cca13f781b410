# SPDX-License-Identifier: GPL-2.0-or-later
"""The supervisor's thread and its parts.

`supervisor` wires the parts, and each knows only those that it is given. `life` alone changes the state of a repository. `state`
holds what is known, `agenda` the work that waits for a worker or a time. `intake` and `control` take records, `detached` cares for
repositories in trouble, `departures` for those that leave, and `dispatch` gives tasks to workers.
"""
