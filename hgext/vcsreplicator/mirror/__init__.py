# SPDX-License-Identifier: GPL-2.0-or-later
"""A mirror, which applies the master's events and serves what is released.

It applies events exactly once in effect, in order per repository. `service` is one supervisor process (`supervision/`) with worker
processes (`pool`). `plan` decides purely what one event means; the border (`hg.replica`) performs it. A repository that cannot go
on is detached until it is caught up again.
"""

from .settings import MirrorSettings as MirrorSettings
