"""Open the database: a SQLite file private from its first byte, or a server by URL; at this version or not at all.

All that is special to one SQL dialect is here. All else speaks SQLAlchemy Core that SQLite and PostgreSQL share.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection, Engine, Table, create_engine, event, func, insert, inspect, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.sql.dml import Insert

from recorder import schema
from recorder.errors import StoreError

BUSY_TIMEOUT_S = 30.0
"""How long a writer waits for another process's transaction; ours take milliseconds."""

PAGE_BYTES = 8192
_TABLES_LOCK = int.from_bytes(b"memwalk", "big")

T = TypeVar("T")


def connect(target: str | Path, *, create: bool = True, patience_s: float = BUSY_TIMEOUT_S) -> Engine:
    """An engine on a database of this schema version. StoreError, one line, when that cannot be had."""
    url, where = _url(target), shown(target)
    if url.get_backend_name() == "sqlite":
        _private_file(Path(where), create=create)
    try:
        engine = create_engine(url, connect_args={"timeout": patience_s} if url.get_backend_name() == "sqlite" else {})
    except (ArgumentError, NoSuchModuleError, ImportError) as e:
        raise StoreError(
            f"database: expected a file or a database URL with its driver installed, got {e}, at {where}"
        ) from e
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", begin_immediate)
    try:
        with errors(where):
            patiently(lambda: _bring_to_version(engine, where, create=create), BUSY_TIMEOUT_S)
    except BaseException:
        engine.dispose()
        raise
    return engine


def shown(target: str | Path) -> str:
    """The target as an error may name it: no password."""
    url = _url(target)
    return str(url.database) if url.get_backend_name() == "sqlite" else url.render_as_string(hide_password=True)


def file(target: str | Path) -> Path | None:
    """The SQLite file; None = a server."""
    url = _url(target)
    return Path(str(url.database)) if url.get_backend_name() == "sqlite" else None


@contextmanager
def errors(where: str) -> Iterator[None]:
    """Turns what the driver says into one line of ours."""
    try:
        yield
    except DBAPIError as e:
        said = " ".join(str(e.orig).split())
        raise StoreError(
            f"database: expected to read and write, got {type(e.orig).__name__}: {said}, at {where}"
        ) from e


@contextmanager
def alone(engine: Engine) -> Iterator[Connection]:
    """A transaction that makes or alters tables: one at a time, though many programs may open the same new database."""
    with engine.begin() as connection:  # on SQLite that has the write lock already
        if engine.dialect.name == "postgresql":
            connection.execute(select(func.pg_advisory_xact_lock(_TABLES_LOCK)))
        yield connection


def ignoring_duplicates(connection: Connection, table: Table) -> Insert:
    """INSERT that leaves a row that is there as it is; both dialects say ON CONFLICT DO NOTHING."""
    return _ignoring_duplicates(connection.dialect.name, table)


@cache
def _ignoring_duplicates(dialect: str, table: Table) -> Insert:
    if dialect == "sqlite":
        return sqlite.insert(table).on_conflict_do_nothing()
    return postgresql.insert(table).on_conflict_do_nothing()


def patiently(work: Callable[[], T], patience_s: float) -> T:
    """`work`, tried again for `patience_s` while another writer is in the way."""
    end, pause_s = time.monotonic() + patience_s, 0.01
    while True:
        try:
            return work()
        except DBAPIError as e:
            if not is_transient(e) or time.monotonic() + pause_s > end:
                raise
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.5)


def is_transient(error: DBAPIError) -> bool:
    """Another writer was in the way: worth the same transaction again."""
    said = str(error.orig).lower()
    return "database is locked" in said or "deadlock detected" in said or "could not serialize" in said


def _url(target: str | Path) -> URL:
    text = str(target)
    if "://" not in text:
        return URL.create("sqlite", database=text)
    try:
        url = make_url(text)
    except ArgumentError as e:
        raise StoreError(f"database: expected FILE or a URL such as postgresql://host/name, got {text!r}") from e
    return url.set(drivername="postgresql+psycopg") if url.drivername in ("postgresql", "postgres") else url


def _private_file(path: Path, *, create: bool) -> None:
    try:
        flags = os.O_RDWR | (os.O_CREAT if create else 0)
        os.close(os.open(path, flags, 0o600))
    except FileNotFoundError as e:
        missing = path if path.parent.is_dir() else path.parent
        raise StoreError(f"database: expected a file, got nothing at {missing}") from e
    except IsADirectoryError as e:
        raise StoreError(f"database: expected a file, got a directory at {path}") from e
    except OSError as e:
        raise StoreError(f"database: expected a file to read and write, got {e.strerror} at {path}") from e


def _set_up_sqlite(connection: sqlite3.Connection, _: object) -> None:
    """WAL with synchronous NORMAL: a commit outlives the process (kill -9), the file outlives a power cut, though the
    last commits before it may not. FULL would add one fsync to every request."""
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA page_size={PAGE_BYTES}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def begin_immediate(connection: Connection) -> None:
    """Take the write lock at the start: a reader that becomes a writer would fail at once instead of waiting."""
    if not connection.get_execution_options().get("reading"):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _bring_to_version(engine: Engine, where: str, *, create: bool) -> None:
    version = _version(engine, where)
    if version == schema.VERSION:
        return
    if version == "":
        if not create:
            raise StoreError(f"database: expected recorded calls, got an empty database, at {where}")
        with alone(engine) as connection:
            if not inspect(connection).has_table(schema.alembic_version.name):
                schema.metadata.create_all(connection)
                connection.execute(insert(schema.alembic_version).values(version_num=schema.VERSION))
        return
    from recorder.migrations import upgrade  # alembic takes 0.2 s to import; most openings need none of it

    upgrade(engine, version, where)


def _version(engine: Engine, where: str) -> str:
    with engine.connect().execution_options(reading=True) as connection:
        tables = inspect(connection).get_table_names()
        if schema.alembic_version.name in tables:
            return str(connection.execute(select(schema.alembic_version.c.version_num)).scalar_one())
        if tables:
            raise StoreError(f"database: expected one of memorywalker, got tables {', '.join(tables[:3])}, at {where}")
        return ""
