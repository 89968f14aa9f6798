"""The archive's two tables, the same for SQLite and PostgreSQL.

`commits` is the record: each commit's exact bytes and its chain link. `facts` is an index of it,
which `verify.py` rebuilds and compares. A change here needs a new file in migrations/versions;
tests/integration/test_audit_store.py checks that both agree.
"""

from typing import Final

import sqlalchemy as sa

# SQLite stores rows by the primary key only if its type is exactly INTEGER, which has 64 bits.
Big: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
METADATA: Final = sa.MetaData()

COMMITS: Final = sa.Table(
    "commits",
    METADATA,
    sa.Column("index", Big, primary_key=True, autoincrement=False),
    sa.Column("seq", Big, nullable=False, unique=True),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
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
