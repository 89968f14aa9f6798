"""Migrations of the archive up and down, on SQLite and PostgreSQL, keep its content.

A killed migration leaves nothing half done.
"""

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from libs.common.errors import Corrupt, Refused, TooNew
from services.audit.store import schema
from services.audit.store.store import Store
from services.audit.store.tables import METADATA
from tests.integration.audit_world import engine, entries, tamper


def test_the_migrations_make_the_tables_that_the_code_names(store: Store, url: str) -> None:
    with engine(url).connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []


def test_the_newest_revision_is_the_one_that_needs_no_step(store: Store, url: str) -> None:
    assert schema.revision(engine(url)) == schema.HEAD


def test_migrating_again_keeps_what_is_there(store: Store) -> None:
    store.append(entries(1, 2))
    store.migrate()
    assert store.migrate_to("head") == ("0001", "0001")
    assert [r.seq for r in store.commits()] == [1, 2]


def test_the_schema_goes_down_and_up_again(store: Store, url: str) -> None:
    store.append(entries(1, 2))
    assert store.migrate_to("base") == ("0001", "")
    assert set(sa.inspect(engine(url)).get_table_names()) == {"alembic_version"}
    assert store.migrate_to("0001") == ("", "0001")
    assert store.head() is None
    assert len(store.append(entries(1, 3))) == 3


def test_unknown_revision_is_refused(store: Store) -> None:
    store.append(entries(1, 2))
    with pytest.raises(Refused, match="write 0001, head or base"):
        store.migrate_to("0815")
    assert store.head() is not None


def test_archives_that_start_together_migrate_one_after_another(url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: Store(url).migrate(), range(4)))
    assert Store(url).head() is None


def test_a_database_of_a_newer_schema_is_refused(store: Store, url: str) -> None:
    tamper(url, "update alembic_version set version_num = '9999'")
    with pytest.raises(TooNew, match="revision 9999"):
        store.migrate()


def test_archive_without_a_schema_is_reported(url: str) -> None:
    with pytest.raises(Corrupt, match=r"services\.audit migrate"):
        Store(url).head()


def test_a_killed_migration_leaves_nothing_half_done(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/audit.db"
    code = """
import os, signal, sys
from alembic import op
from services.audit.store import schema
from services.audit.store.store import Store
op.create_index = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
Store(sys.argv[1]).migrate()
"""
    assert (
        subprocess.run([sys.executable, "-c", code, url], check=False).returncode == -signal.SIGKILL
    )
    store = Store(url)
    store.migrate()
    assert len(store.append(entries(1, 2))) == 2
    store.close()
