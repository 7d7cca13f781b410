# SPDX-License-Identifier: GPL-2.0-or-later
"""The supervisor's thread and its parts.

`supervisor` wires the parts, and each knows only the parts that it is given. `life` alone changes the state of a repository, which
is four `values`. `state` holds the repositories, the roster and the acks, `agenda` the work that waits for a worker or a time.
`intake` and `control` take records, `detached` cares for repositories in trouble, `departures` for repositories that leave, and
`dispatch` gives tasks to workers.
"""
