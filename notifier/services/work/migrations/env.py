# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs migrations over the connection that the caller has opened."""

from alembic import context

from notifier.services.work.schema import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
with context.begin_transaction():
    context.run_migrations()
