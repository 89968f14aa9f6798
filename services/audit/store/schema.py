"""The revision of an archive's schema. Steps to another one are Alembic's (`migrating.py`).

Alembic takes a quarter of the imports of an audit service, so it is imported only for a step.
Tests: tests/integration/test_audit_migrations.py.
"""

from typing import Final

import sqlalchemy as sa

# The newest of migrations/versions.
HEAD: Final = "0001"
# Alembic's table.
REVISIONS: Final = sa.table("alembic_version", sa.column("version_num", sa.String))


def upgrade(engine: sa.Engine) -> None:
    """Migrate to this version's schema. Raises TooNew if the database's schema is newer."""
    if revision(engine) == HEAD:
        return
    from services.audit.store import migrating

    migrating.upgrade(engine)


def move(engine: sa.Engine, to: str) -> tuple[str, str]:
    """Migrate to revision `to`; see `migrating.move`."""
    from services.audit.store import migrating

    return migrating.move(engine, to)


def revision(engine: sa.Engine) -> str:
    """Return the revision of the database's schema; empty if it has none, or several."""
    with engine.connect() as connection:
        if not sa.inspect(connection).has_table(REVISIONS.name):
            return ""
        found = list(connection.execute(sa.select(REVISIONS.c.version_num)).scalars())
    return str(found[0]) if len(found) == 1 else ""
