"""Alembic's entry: runs the steps on the connection that `migrating.py` has opened and locked,
inside its transaction.

There is no alembic.ini: the connection comes as an attribute, so the same steps run in the service,
in tests and from the command line.
"""

from alembic import context

from services.audit.store.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
