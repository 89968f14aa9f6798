"""Archives for tests: each on a new SQLite file, and on PostgreSQL where there is one
(tests/postgres.py).
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.audit.store.store import Store
from tests import postgres
from tests.integration.audit_world import empty


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    pytest.importorskip("psycopg")
    if url := os.environ.get(postgres.VARIABLE):
        yield url
    elif (programs := postgres.programs()) is None:
        pytest.skip(f"PostgreSQL is not installed, and {postgres.VARIABLE} gives no URL")
    else:
        with postgres.running(programs) as url:
            yield url


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/audit.db"
    found: str = request.getfixturevalue("postgres_url")
    empty(found)
    return found


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = Store(url)
    opened.migrate()
    yield opened
    opened.close()
