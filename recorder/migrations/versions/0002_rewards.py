"""Rewards of sessions, and which session started which."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "kin",
        sa.Column("session", sa.String, primary_key=True),
        sa.Column("parent", sa.String, nullable=False),
    )
    op.create_table(
        "reward",
        sa.Column("session", sa.String, primary_key=True),
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("value", sa.Float(53), nullable=False),
        sa.Column("group", sa.String),
    )
