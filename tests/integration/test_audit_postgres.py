"""An archive in PostgreSQL: missing rights and a wrong encoding are told as what they are."""

import pytest
import sqlalchemy as sa

from libs.common.errors import Refused, Unavailable
from services.audit.store.store import Store
from tests.integration.audit_world import empty, engine, entries, tamper


def own(url: str, *statements: str) -> None:
    """Run statements outside a transaction."""
    with engine(url).connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in statements:
            connection.execute(sa.text(statement))


def test_a_missing_right_is_told_as_such(postgres_url: str) -> None:
    empty(postgres_url)
    owner = Store(postgres_url)
    owner.migrate()
    owner.append(entries(1, 1))
    tamper(postgres_url, "drop role if exists reader", "create role reader login")
    reader = Store(str(sa.make_url(postgres_url).set(username="reader")))
    with pytest.raises(Unavailable, match=r"has no right to do this .*alembic_version.*SELECT"):
        reader.migrate()
    tamper(postgres_url, "grant select on all tables in schema public to reader")
    reader.migrate()
    assert reader.head() is not None
    with pytest.raises(Unavailable, match=r"has no right to do this .*commits.*INSERT"):
        reader.append(entries(2, 2))
    tamper(postgres_url, "grant insert on all tables in schema public to reader")
    assert [link.seq for link in reader.append(entries(2, 2))] == [2]
    reader.close()
    owner.close()
    tamper(postgres_url, "drop owned by reader", "drop role reader")


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_cannot_store_every_text_is_refused(
    postgres_url: str, encoding: str
) -> None:
    own(
        postgres_url,
        "drop database if exists narrow",
        f"create database narrow encoding '{encoding}' template template0",
    )
    store = Store(str(sa.make_url(postgres_url).set(database="narrow")))
    for act in (store.migrate, store.head_now):
        with pytest.raises(Refused, match=f"narrow has the encoding {encoding}"):
            act()
    own(postgres_url, "drop database narrow")
