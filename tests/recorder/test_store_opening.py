"""Opening: private from the first byte, at this version or one line that says why not."""

import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine, event
from storecalls import CALL

from recorder import database, migrations, schema
from recorder.errors import StoreError
from recorder.store import Store

TABLES = "select type, name, sql from sqlite_schema where name not like 'sqlite_%' order by 2"


def mode(path: Path) -> str:
    return oct(stat.S_IMODE(path.stat().st_mode))


def test_the_file_and_its_companions_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with Store.open(tmp_path / "t.db") as store:
            store.put(CALL)
            assert {p.name: mode(p) for p in tmp_path.iterdir()} == {
                "t.db": "0o600",
                "t.db-wal": "0o600",
                "t.db-shm": "0o600",
            }
    finally:
        os.umask(before)


def test_a_url_and_a_path_name_the_same_file(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/t.db") as store:
        store.put(CALL)
    with Store.open(tmp_path / "t.db", create=False) as store:
        assert store.call(1).request_body == CALL.request_body


def opening(path: Path | str, *, create: bool = True) -> str:
    with pytest.raises(StoreError) as caught:
        Store.open(path, create=create)
    said = str(caught.value)
    assert "\n" not in said
    return said.replace(str(Path(str(path)).parent), "DIR")


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    assert opening(tmp_path / "t.db", create=False) == "database: expected a file, got nothing at DIR/t.db"
    assert not (tmp_path / "t.db").exists()


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    assert opening(tmp_path / "no" / "t.db") == "database: expected a file, got nothing at DIR"


def test_a_directory_is_said(tmp_path: Path) -> None:
    assert opening(tmp_path) == f"database: expected a file, got a directory at DIR/{tmp_path.name}"


def test_a_file_of_another_kind_is_said_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "t.db").write_bytes(b"hello, this is a text file\n" * 50)
    assert opening(tmp_path / "t.db") == (
        "database: expected to read and write, got DatabaseError: file is not a database, at DIR/t.db"
    )
    assert (tmp_path / "t.db").read_bytes() == b"hello, this is a text file\n" * 50


def test_a_sqlite_file_of_another_program_is_said_and_left_alone(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "t.db")
    other.execute("create table songs (id)")
    other.close()
    assert opening(tmp_path / "t.db") == "database: expected one of memorywalker, got tables songs, at DIR/t.db"


def test_an_empty_file_becomes_a_database_only_when_asked(tmp_path: Path) -> None:
    (tmp_path / "t.db").touch()
    assert opening(tmp_path / "t.db", create=False) == (
        "database: expected recorded calls, got an empty database, at DIR/t.db"
    )
    Store.open(tmp_path / "t.db").close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_said(tmp_path: Path) -> None:
    (tmp_path / "t.db").touch(mode=0)
    assert opening(tmp_path / "t.db") == (
        "database: expected a file to read and write, got Permission denied at DIR/t.db"
    )


def test_a_url_of_no_known_database_is_said() -> None:
    assert "expected a file or a database URL with its driver installed" in opening("nosuch://host/name")


def test_a_password_in_a_url_is_not_told() -> None:
    assert "hunter2" not in opening("nosuch://me:hunter2@host/name")


def test_a_database_of_a_newer_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    Store.open(tmp_path / "t.db").close()
    file = sqlite3.connect(tmp_path / "t.db")
    file.execute("update alembic_version set version_num = '9999'")
    file.commit()
    assert opening(tmp_path / "t.db") == (
        "database: expected schema 0002 or older, got '9999' of a newer program, at DIR/t.db"
    )
    assert file.execute("select * from alembic_version").fetchall() == [("9999",)]
    file.close()


def test_the_migrations_make_the_same_tables_as_a_new_database(tmp_path: Path) -> None:
    Store.open(tmp_path / "new.db").close()
    engine = create_engine(f"sqlite:///{tmp_path}/old.db")
    event.listen(engine, "begin", database.begin_immediate)
    migrations.upgrade(engine, "", "old.db")
    engine.dispose()
    new, old = sqlite3.connect(tmp_path / "new.db"), sqlite3.connect(tmp_path / "old.db")
    assert old.execute(TABLES).fetchall() == new.execute(TABLES).fetchall()
    assert old.execute("select * from alembic_version").fetchall() == [(schema.VERSION,)]
    new.close()
    old.close()


def test_an_older_database_is_brought_up_in_place_and_keeps_its_calls(tmp_path: Path) -> None:
    with Store.open(tmp_path / "t.db") as store:
        store.put(CALL)
    steps = tmp_path / "migrations"
    (steps / "versions").mkdir(parents=True)
    for step in (migrations.FOLDER / "versions").glob("*.py"):
        (steps / "versions" / step.name).write_text(step.read_text())
    (steps / "versions" / "0003_note.py").write_text(
        "import sqlalchemy as sa\nfrom alembic import op\nrevision = '0003'\ndown_revision = '0002'\n"
        "def upgrade():\n    op.add_column('call', sa.Column('note', sa.String))\n"
    )
    engine = database.connect(tmp_path / "t.db")
    migrations.upgrade(engine, "0002", "t.db", folder=steps)
    engine.dispose()
    file = sqlite3.connect(tmp_path / "t.db")
    assert file.execute("select seq, note from call").fetchall() == [(1, None)]
    assert file.execute("select * from alembic_version").fetchall() == [("0003",)]
    file.close()


def test_opening_a_database_of_this_version_imports_no_alembic(tmp_path: Path) -> None:
    Store.open(tmp_path / "t.db").close()
    program = (
        "import sys; from recorder.store import Store; Store.open(sys.argv[1]).close(); print('alembic' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "t.db")], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
