"""What a database's errors mean for the archive: each becomes one typed error that says what to do.

A unique violation means that another archive has written (Fenced); a full disk, a file that is no
database, and everything that may pass (locked, no connection) have an error each. Tests make each
of them happen to a real file.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy import exc

from libs.common.errors import Corrupt, Fenced, MusterError, Unavailable

SQLITE_CORRUPT: Final = 11
SQLITE_FULL: Final = 13
SQLITE_NOTADB: Final = 26
SQLITE_IOERR_SHMSIZE: Final = (
    4874  # the shared index of the write-ahead log could not grow: a full disk as well
)
POSTGRES_DISK_FULL: Final = "53100"
POSTGRES_CORRUPT: Final = ("XX001", "XX002")


class DiskFull(Unavailable):
    """The archive's disk is full; nothing of the batch was stored.

    Free space, then go on: no restart is needed.
    """


@contextmanager
def telling(what: str, where: str) -> Iterator[None]:
    """Turns a database's error while doing `what` at `where` (an URL without its password) into the
    typed one.
    """
    try:
        yield
    except exc.DBAPIError as error:
        raise _meant(error, f"{what} in {where}") from error


def _meant(error: exc.DBAPIError, tried: str) -> MusterError:
    number = getattr(error.orig, "sqlite_errorcode", 0)
    state = getattr(error.orig, "sqlstate", "") or ""
    if isinstance(error, exc.ProgrammingError) or "no such table" in _text(error):
        return Corrupt(
            f"{tried}: the schema is not the archive's ({_text(error)}); migrate it first"
        )
    if isinstance(error, exc.IntegrityError):
        return Fenced(
            f"{tried}: another archive has written there; stop one of the two, or stand by "
            "and read the head again"
        )
    if number in (SQLITE_FULL, SQLITE_IOERR_SHMSIZE) or state == POSTGRES_DISK_FULL:
        return DiskFull(
            f"{tried}: the disk is full; free space there, the archive goes on by itself"
        )
    if number in (SQLITE_CORRUPT, SQLITE_NOTADB) or state in POSTGRES_CORRUPT:
        return Corrupt(
            f"{tried}: the database is damaged ({_text(error)}); restore it from a backup, "
            "the log fills in the rest"
        )
    return Unavailable(
        f"{tried}: {_text(error)}; check that the database can be reached, then try again"
    )


def _text(error: exc.DBAPIError) -> str:
    return " ".join(str(error.orig).split())
