# SPDX-License-Identifier: GPL-2.0-or-later
"""The aggregator: releases an event once every mirror that gates has applied it, in order per repository, and writes its notice.

`loop` is the service, `decisions` decides, purely, and says what is to be written.
"""
