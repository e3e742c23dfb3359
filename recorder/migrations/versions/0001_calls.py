"""The first schema: calls, their packs and segments, the trie of prefixes."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "run",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("key", sa.String, nullable=False, unique=True),
    )
    op.create_table(
        "session",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("key", sa.String, nullable=False, unique=True),
        sa.Column("harness", sa.String, nullable=False),
    )
    op.create_table(
        "pack",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("base", _ID),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "segment",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("pack", _ID, nullable=False),
        sa.Column("start", sa.Integer, nullable=False),
        sa.Column("length", sa.Integer, nullable=False),
    )
    op.create_table(
        "call",
        sa.Column("seq", _ID, primary_key=True),
        sa.Column("run", _ID, sa.ForeignKey("run.id"), nullable=False),
        sa.Column("session", _ID, sa.ForeignKey("session.id"), nullable=False),
        sa.Column("once", sa.LargeBinary, unique=True),
        sa.Column("model", sa.String, nullable=False),
        sa.Column("status", sa.Integer),
        sa.Column("outcome", sa.String, nullable=False),
        sa.Column("started_at_utc", sa.Float(53), nullable=False),
        sa.Column("first_byte_s", sa.Float(53)),
        sa.Column("duration_s", sa.Float(53)),
        sa.Column("request_length", sa.BigInteger, nullable=False),
        sa.Column("request_digest", sa.LargeBinary, nullable=False),
        sa.Column("response_length", sa.BigInteger),
        sa.Column("response_digest", sa.LargeBinary),
        sa.Column("row_digest", sa.LargeBinary, nullable=False),
        sa.Column("head", sa.LargeBinary),
        sa.Column("node", sa.LargeBinary),
        sa.Column("request_pack", _ID, nullable=False),
        sa.Column("response_pack", _ID),
        sa.Column("base", _ID),
        sa.Column("recipe", sa.LargeBinary, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("call_session", "call", ["session"])
    op.create_index("call_run", "call", ["run"])
    op.create_table(
        "chunk",
        sa.Column("seq", _ID, primary_key=True),
        sa.Column("place", sa.Integer, primary_key=True),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "node",
        sa.Column("id", sa.LargeBinary, primary_key=True),
        sa.Column("parent", sa.LargeBinary),
        sa.Column("message", sa.LargeBinary),
        sqlite_with_rowid=False,
    )
