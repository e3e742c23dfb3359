"""What PostgreSQL does in its own way: opening, versions, and a server that goes away and comes back."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import databases
import pytest
from sqlalchemy import Engine, create_engine, inspect, text
from storecalls import CALL, turns

from recorder import migrations, schema
from recorder.errors import StoreError
from recorder.store import Store

STEP = (
    "import sqlalchemy as sa\nfrom alembic import op\nrevision = '0003'\ndown_revision = '0002'\n"
    "def upgrade():\n    op.add_column('call', sa.Column('note', sa.String))\n"
)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[str]:
    with databases.empty("postgresql", tmp_path) as target:
        yield target


@pytest.fixture
def engine(target: str) -> Iterator[Engine]:
    made = create_engine(target.replace("postgresql:", "postgresql+psycopg:"))
    yield made
    made.dispose()


def columns(engine: Engine) -> dict[str, list[str]]:
    seen = inspect(engine)
    return {
        t: [f"{c['name']} {c['type']} {c['nullable']}" for c in seen.get_columns(t)] for t in seen.get_table_names()
    }


def test_the_migrations_make_the_same_tables_as_a_new_database(target: str, engine: Engine, tmp_path: Path) -> None:
    Store.open(target).close()
    new = columns(engine)
    with engine.begin() as connection:
        connection.execute(text("drop schema public cascade"))
        connection.execute(text("create schema public"))
    migrations.upgrade(engine, "", "here")
    assert columns(engine) == new
    assert sorted(new) == sorted(schema.metadata.tables)


def test_an_older_database_is_brought_up_in_place_and_keeps_its_calls(
    target: str, engine: Engine, tmp_path: Path
) -> None:
    with Store.open(target) as store:
        store.put(CALL)
    (tmp_path / "versions").mkdir()
    for step in (migrations.FOLDER / "versions").glob("*.py"):
        (tmp_path / "versions" / step.name).write_text(step.read_text())
    (tmp_path / "versions" / "0003_note.py").write_text(STEP)
    migrations.upgrade(engine, "0002", "here", folder=tmp_path)
    with engine.connect() as connection:
        assert connection.execute(text("select seq, note from call")).all() == [(1, None)]
        assert connection.execute(text("select version_num from alembic_version")).all() == [("0003",)]


def test_a_database_of_a_newer_program_is_refused_in_one_line(target: str, engine: Engine) -> None:
    Store.open(target).close()
    with engine.begin() as connection:
        connection.execute(text("update alembic_version set version_num = '9999'"))
    with pytest.raises(
        StoreError, match=r"^database: expected schema 0002 or older, got '9999' of a newer program, at "
    ):
        Store.open(target)


def test_a_database_that_is_not_there_is_said_without_its_password(target: str) -> None:
    wrong = target.replace("postgres@", "postgres:hunter2@") + "nowhere"
    with pytest.raises(StoreError, match="does not exist") as caught:
        Store.open(wrong)
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_server_that_ends_a_connection_costs_one_write_and_no_later_one(target: str, engine: Engine) -> None:
    first, second, third = turns(3)
    with Store.open(target) as store:
        store.put(first)
        with engine.connect() as connection:
            ended = (
                "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and datname = "
            )
            connection.execute(text(ended + "current_database()"))
        with pytest.raises(StoreError, match="terminat"):
            store.put(second)
        store.put(second)
        store.put(third)
        assert [replace(c, seq=0) for c in store.calls()] == [first, second, third]
        assert store.verify() == []
