"""The archive's first schema: commits under the chain, and facts as an index into them.

Written out, not taken from tables.py: a recorded step never changes, whatever the tables become.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "commits",
        sa.Column("index", big, primary_key=True, autoincrement=False),
        sa.Column("seq", big, nullable=False, unique=True),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.Column("at_ns", big, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("previous_hash", sa.Text, nullable=False),
    )
    op.create_table(
        "facts",
        sa.Column("seq", big, primary_key=True, autoincrement=False),
        sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("job_id", sa.Text),
        sa.Column("node_id", sa.Text),
        sa.Column("at_ns", big, nullable=False),
    )
    op.create_index("facts_by_job", "facts", ["job_id", "seq"])
    op.create_index("facts_by_node", "facts", ["node_id", "seq"])
    op.create_index("facts_by_kind", "facts", ["kind", "seq"])
    op.create_index("facts_by_time", "facts", ["at_ns"])


def downgrade() -> None:
    op.drop_table("facts")
    op.drop_table("commits")
