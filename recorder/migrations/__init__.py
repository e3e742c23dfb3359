"""Steps from one schema version to the next, one module each in `versions/`; an older database walks them in place."""

from pathlib import Path

from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext, RevisionStep
from alembic.script import ScriptDirectory
from alembic.script.revision import ResolutionError
from sqlalchemy import Engine

from recorder.errors import StoreError


def upgrade(engine: Engine, version: str, where: str) -> None:
    """Bring a database at `version` (empty = no tables) to the newest in one transaction. StoreError: it is newer."""
    script = ScriptDirectory(str(Path(__file__).parent))
    head = script.get_current_head()
    try:
        script.get_revision(version or "base")
    except ResolutionError as e:
        raise StoreError(
            f"database: expected schema {head} or older, got {version!r} (newer program?) at {where}"
        ) from e

    def steps(revision: object, _: MigrationContext) -> list[RevisionStep]:
        return script._upgrade_revs("head", revision)  # type: ignore[arg-type]  # what alembic's own command calls

    with engine.begin() as connection:
        context = MigrationContext.configure(connection, opts={"fn": steps, "script": script})
        with Operations.context(context):
            context.run_migrations()
