# SPDX-License-Identifier: GPL-2.0-or-later
"""The aggregator: releases events to mirrors and writes their notices.

It releases an event once every mirror that gates has applied it, in order per repository, and writes its notice once every one
serves it. `loop` is the service: `session` after `session`. `decisions` decides, purely, what is to be written.
"""
