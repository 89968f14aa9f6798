"""Migrates an archive's schema to this version, or back, with Alembic inside this process.

A run is one transaction under one lock. So a killed migration leaves nothing half done, and two
archives that start together do not collide. A database with a newer schema is refused (TooNew) and
not changed. The steps are in migrations/versions.
"""

from contextlib import suppress
from typing import Final

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError

from libs.common.errors import Refused, TooNew

SCRIPTS: Final = "services.audit:migrations"
POSTGRES_LOCK: Final = 0x6D757374  # any number that no other program takes: "must"


def upgrade(engine: sa.Engine) -> None:
    """Migrate to this version's schema. Raises TooNew if the database's schema is newer."""
    with engine.begin() as connection:
        config = _prepare(connection)
        command.upgrade(config, "head")


def move(engine: sa.Engine, to: str) -> tuple[str, str]:
    """Migrate up or down to revision `to`: `head`, `base`, or a number.

    Return the revisions before and after, empty for none. Raises Refused, TooNew.
    """
    with engine.begin() as connection:
        config = _prepare(connection)
        known = [
            script.revision for script in ScriptDirectory.from_config(config).walk_revisions()
        ][::-1]
        target = {"head": known[-1], "base": ""}.get(to, to)
        if target and target not in known:
            raise Refused(
                f"--to {to!r} is not a revision of the archive's schema: write "
                f"{', '.join(known)}, head or base"
            )
        before = MigrationContext.configure(connection).get_current_revision() or ""
        order = ["", *known]
        if order.index(target) > order.index(before):
            command.upgrade(config, target)
        elif target != before:
            command.downgrade(config, target or "base")
        return before, target


def _prepare(connection: sa.Connection) -> Config:
    _lock(connection)
    config = Config()
    config.set_main_option("script_location", SCRIPTS)
    config.attributes["connection"] = connection
    _refuse_newer(connection, ScriptDirectory.from_config(config))
    return config


def _lock(connection: sa.Connection) -> None:
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    else:
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(POSTGRES_LOCK)))


def _refuse_newer(connection: sa.Connection, scripts: ScriptDirectory) -> None:
    revision = MigrationContext.configure(connection).get_current_revision()
    if revision is None:
        return
    with suppress(CommandError):
        if scripts.get_revision(revision) is not None:
            return
    raise TooNew(
        f"the archive's schema is revision {revision}, and this version knows only up to "
        f"{scripts.get_current_head()}: "
        "upgrade the audit service, then start it again"
    )
