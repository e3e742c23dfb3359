"""The tables: a call is a thin row, its bytes are recipes over shared segments, its prefix is one node of a trie.

run, session    keys of calls, each told once
pack            what a request or response added, compressed: small facts (method, URL, headers), then its new bytes
segment         content address of a piece of a request -> place in a pack
call            one HTTP attempt: times, outcome, digests; its request is a recipe of segments over that of call `base`
chunk           response bytes of a call that is not finished yet, in order of arrival
node            persistent trie of prefixes: id = prefix_hash(parent, message); the root's id = Head.digest
kin             a subagent's session -> the session that started it, as its headers said
reward          what a session earned, by name; a session here is any that trees know, stored as one or not
"""

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
)

VERSION = "0002"
"""Head of `recorder/migrations`: what a new database is created at."""

metadata = MetaData()
_Id = BigInteger().with_variant(Integer, "sqlite")
"""SQLite numbers rows by itself only where the type is INTEGER."""

run = Table("run", metadata, Column("id", _Id, primary_key=True), Column("key", String, nullable=False, unique=True))

session = Table(
    "session",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("key", String, nullable=False, unique=True),
    Column("harness", String, nullable=False),
)

pack = Table(
    "pack",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("base", _Id),
    Column("data", LargeBinary, nullable=False),
)

segment = Table(
    "segment",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("digest", LargeBinary, nullable=False, unique=True),
    Column("pack", _Id, nullable=False),
    Column("start", Integer, nullable=False),
    Column("length", Integer, nullable=False),
)

call = Table(
    "call",
    metadata,
    Column("seq", _Id, primary_key=True),
    Column("run", _Id, ForeignKey("run.id"), nullable=False),
    Column("session", _Id, ForeignKey("session.id"), nullable=False),
    Column("once", LargeBinary, unique=True),
    Column("model", String, nullable=False),
    Column("status", Integer),
    Column("outcome", String, nullable=False),
    Column("started_at_utc", Float(53), nullable=False),
    Column("first_byte_s", Float(53)),
    Column("duration_s", Float(53)),
    Column("request_length", BigInteger, nullable=False),
    Column("request_digest", LargeBinary, nullable=False),
    Column("response_length", BigInteger),
    Column("response_digest", LargeBinary),
    Column("row_digest", LargeBinary, nullable=False),
    Column("head", LargeBinary),
    Column("node", LargeBinary),
    Column("request_pack", _Id, nullable=False),
    Column("response_pack", _Id),
    Column("base", _Id),
    Column("recipe", LargeBinary, nullable=False),
    Index("call_session", "session"),
    Index("call_run", "run"),
    sqlite_autoincrement=True,
)
"""`response_*` are NULL while the call is open; `once` keeps a call from being stored twice."""

chunk = Table(
    "chunk",
    metadata,
    Column("seq", _Id, primary_key=True),
    Column("place", Integer, primary_key=True),
    Column("data", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)

node = Table(
    "node",
    metadata,
    Column("id", LargeBinary, primary_key=True),
    Column("parent", LargeBinary),
    Column("message", LargeBinary),
    sqlite_with_rowid=False,
)

kin = Table("kin", metadata, Column("session", String, primary_key=True), Column("parent", String, nullable=False))

reward = Table(
    "reward",
    metadata,
    Column("session", String, primary_key=True),
    Column("name", String, primary_key=True),
    Column("value", Float(53), nullable=False),
    Column("group", String),
)

alembic_version = Table(
    "alembic_version",
    metadata,
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Exactly as alembic makes it."""
