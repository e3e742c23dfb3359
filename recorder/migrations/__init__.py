"""Steps from one schema version to the next, one module each in `versions/`; an older database walks them in place."""

from pathlib import Path
from typing import cast

from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext, RevisionStep
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Engine

from recorder.database import alone
from recorder.errors import StoreError

FOLDER = Path(__file__).parent


def upgrade(engine: Engine, version: str, where: str, *, folder: Path = FOLDER) -> None:
    """Bring a database at `version` (empty = no tables) to the newest, in one transaction. StoreError: it is newer."""
    script = ScriptDirectory(str(folder))
    head = script.get_current_head()
    try:
        known = not version or script.get_revision(version) is not None
    except CommandError:
        known = False
    if not known:
        raise StoreError(f"database: expected schema {head} or older, got {version!r} of a newer program, at {where}")

    def steps(revision: object, _: MigrationContext) -> list[RevisionStep]:
        return script._upgrade_revs("head", cast(str, revision))  # as alembic's own command

    with alone(engine) as connection:
        context = MigrationContext.configure(connection, opts={"fn": steps, "script": script})
        with Operations.context(context):
            context.run_migrations()
