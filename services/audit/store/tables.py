"""The archive's two tables, the same for SQLite and PostgreSQL.

`commits` is the record: each commit's exact bytes and its chain link. `facts` is an index of it,
which `verify.py` rebuilds and compares. A change here needs a new file in migrations/versions;
tests/integration/test_audit_store.py checks that both agree. The rows index what a commit says, so
they hold facts of any writer: `by_writers` selects those that their writer may record.
"""

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from libs.common import subjects

# SQLite stores rows by the primary key only if its type is exactly INTEGER, which has 64 bits.
Big: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
METADATA: Final = sa.MetaData()


class Bytes(sa.TypeDecorator[bytes]):
    """Bytes that are read as bytes, also if someone stored a text in the column of SQLite."""

    impl = sa.LargeBinary
    cache_ok = True

    def column_expression(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[bytes]:
        return sa.cast(column, sa.LargeBinary)


COMMITS: Final = sa.Table(
    "commits",
    METADATA,
    sa.Column("index", Big, primary_key=True, autoincrement=False),
    sa.Column("seq", Big, nullable=False, unique=True),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("data", Bytes, nullable=False),
    sa.Column("at_ns", Big, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
    sa.Column("previous_hash", sa.Text, nullable=False),
)

FACTS: Final = sa.Table(
    "facts",
    METADATA,
    sa.Column("seq", Big, primary_key=True, autoincrement=False),
    sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("job_id", sa.Text),
    sa.Column("node_id", sa.Text),
    sa.Column("at_ns", Big, nullable=False),
    sa.Index("facts_by_job", "job_id", "seq"),
    sa.Index("facts_by_node", "node_id", "seq"),
    sa.Index("facts_by_kind", "kind", "seq"),
    sa.Index("facts_by_time", "at_ns"),
)

NODES: Final = subjects.node("")
# Conditions on the subject of a fact row's commit.
BY_NODE: Final = COMMITS.c.subject.startswith(NODES, autoescape=True)
BY_OWN_NODE: Final = COMMITS.c.subject == sa.literal(NODES) + FACTS.c.node_id
BY_WRITER: Final = {
    subjects.NODE_KIND: BY_OWN_NODE,
    subjects.GATEWAY_KIND: COMMITS.c.subject.startswith(subjects.gateway(""), autoescape=True),
    subjects.QUOTA_KIND: COMMITS.c.subject == subjects.QUOTA,
    subjects.SCHEDULER_KIND: COMMITS.c.subject == subjects.SCHEDULER,
}


def in_commit(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """Select fact rows whose commit has this condition.

    It is no join, so that databases still begin with the index of the facts.
    """
    return sa.exists().where(COMMITS.c.seq == FACTS.c.seq, condition)


def by_writers(kinds: Sequence[str]) -> sa.ColumnElement[bool]:
    """Select fact rows of these kinds on the subjects of their writers."""
    rules = [(FACTS.c.kind == kind) & BY_WRITER[subjects.WRITER_OF_KIND[kind]] for kind in kinds]
    return FACTS.c.kind.in_(kinds) & in_commit(sa.or_(*rules))
