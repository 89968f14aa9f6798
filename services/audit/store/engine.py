"""Connects to the archive's database with SQLAlchemy: SQLite or PostgreSQL."""

from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import sqlalchemy as sa

from libs.common.errors import Refused

BUSY_MS: Final = 10_000


def of(url: str, read_only: bool) -> sa.Engine:
    """Return the engine of a database. Raises Refused.

    With `read_only` no file is created: a missing SQLite archive is Refused.
    """
    parsed = sa.make_url(url)
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    if read_only and parsed.get_backend_name() == "sqlite":
        parsed = _read_only(parsed)
    try:
        engine = sa.create_engine(parsed, pool_pre_ping=parsed.get_backend_name() != "sqlite")
    except ModuleNotFoundError as error:
        raise Refused(
            f"the archive's database {parsed.drivername} needs the Python package "
            f"{error.name}: install it"
        ) from error
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _set_reader if read_only else _set_pragmas)
    elif engine.dialect.name == "postgresql":
        sa.event.listen(engine, "connect", _refuse_encoding, insert=True)  # before its own reads
    return engine


def _read_only(url: sa.URL) -> sa.URL:
    path = Path(url.database or "")
    if not path.is_file():
        raise Refused(
            f"there is no archive at {path}: set MUSTER_STATE to a cluster's state "
            "directory, or MUSTER_AUDIT_URL"
        )
    return url.set(database=f"file:{quote(str(path))}", query={"mode": "ro", "uri": "true"})


def _refuse_encoding(connection: Any, _record: object) -> None:  # noqa: ANN401 - a DBAPI connection
    """Raise Refused if a PostgreSQL database cannot store every text."""
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        name = connection.info.dbname
        connection.close()
        raise Refused(
            f"the archive's database {name} has the encoding {encoding}, which cannot store every "
            "text: make a database with ENCODING 'UTF8', and set MUSTER_AUDIT_URL to it"
        )


def _set_patience(connection: Any, _record: object) -> None:  # noqa: ANN401 - a DBAPI connection
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_MS}")
    cursor.close()


def _set_reader(connection: Any, _record: object) -> None:  # noqa: ANN401 - a DBAPI connection
    """Set up an SQLite connection of a command, which also reads an archive that was changed.

    A text that is not UTF-8 then differs from the original one instead of being an error.
    """
    _set_patience(connection, _record)
    connection.text_factory = _text


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")


def _set_pragmas(connection: Any, _record: object) -> None:  # noqa: ANN401 - a DBAPI connection
    """Set up an SQLite connection.

    Each transaction is durable, readers never wait for the writer, and a second writer waits up to
    BUSY_MS before its error.
    """
    _set_patience(connection, _record)
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()
