# SPDX-License-Identifier: GPL-2.0-or-later
"""The messages of repositories that fail."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "parked_messages",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("source", sa.String(60), nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("parked_at", sa.BigInteger, nullable=False),
        sa.Column("error", sa.Text),
        sqlite_autoincrement=True,
    )
    op.create_index("parked_messages_by_repository", "parked_messages", ["source", "number", "id"])
