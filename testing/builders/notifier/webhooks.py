# SPDX-License-Identifier: GPL-2.0-or-later
"""A webhook destination at work without a notifier."""

from hgext.vcsreplicator.words.clock import Clock
from notifier.destinations.webhook.destination import Webhooks, WebhookSettings
from testing.builders.log.memorylog import MemoryLog
from testing.builders.notifier.notices import with_topics


def open_webhooks(settings: WebhookSettings, clock: Clock) -> Webhooks:
    """Open the destination `hooks` on a new log, as a notifier does that no other one fences."""
    log = with_topics(MemoryLog())
    webhooks = Webhooks("hooks", settings, clock, log)
    try:
        webhooks.restore(log.append)
        webhooks.start()
    except BaseException:
        webhooks.close()
        raise
    return webhooks
