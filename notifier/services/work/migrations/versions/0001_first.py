# SPDX-License-Identifier: GPL-2.0-or-later
"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "repositories",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("source", sa.String(60), nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("url", sa.Text, nullable=False, index=True),
        sa.UniqueConstraint("source", "number"),
    )
    op.create_table(
        "pushes",
        sa.Column("repository_id", sa.Integer, sa.ForeignKey("repositories.id"), primary_key=True),
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("date", sa.BigInteger, nullable=False),
        sa.Column("user", sa.Text, nullable=False),
    )
    op.create_index("pushes_by_date", "pushes", ["repository_id", "date"])
    op.create_table(
        "branches",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(500), nullable=False, unique=True),
    )
    op.create_table(
        "changesets",
        sa.Column("node", sa.String(40), primary_key=True),
        sa.Column("author", sa.Text, nullable=False),
        sa.Column("date", sa.BigInteger, nullable=False),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("branch_id", sa.Integer, sa.ForeignKey("branches.id"), nullable=False),
    )
    op.create_table(
        "push_changesets",
        sa.Column("repository_id", sa.Integer, primary_key=True),
        sa.Column("push_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("node", sa.String(40), sa.ForeignKey("changesets.node"), nullable=False, index=True),
        sa.ForeignKeyConstraint(["repository_id", "push_id"], ["pushes.repository_id", "pushes.id"]),
    )
    op.create_table(
        "files",
        sa.Column("node", sa.String(40), sa.ForeignKey("changesets.node"), primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("path", sa.Text, nullable=False),
    )
