"""Turns a database's errors into typed errors that say what to do.

A unique violation means that another archive has written (Fenced). A full disk is DiskFull, a
damaged file Corrupt. Errors that may pass (locked, no connection) are Unavailable. Tests cause each
of them on a real file.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy import exc

from libs.common.errors import Corrupt, Fenced, MusterError, Unavailable

SQLITE_CORRUPT: Final = 11
SQLITE_FULL: Final = 13
SQLITE_NOTADB: Final = 26
# The shared index of the write-ahead log could not grow, which is a full disk too.
SQLITE_IOERR_SHMSIZE: Final = 4874
POSTGRES_NO_RIGHT: Final = "42501"
POSTGRES_DISK_FULL: Final = "53100"
POSTGRES_CORRUPT: Final = ("XX001", "XX002")


class DiskFull(Unavailable):
    """The archive's disk is full; nothing of the batch was stored.

    Free space, then go on: no restart is needed.
    """


@contextmanager
def telling(what: str, where: str) -> Iterator[None]:
    """Turn a database's error in the body into a typed one.

    `what` names the operation, `where` is the database's URL without its password.
    """
    try:
        yield
    except exc.DBAPIError as error:
        raise _typed_error(error, f"{what} in {where}") from error


def _typed_error(error: exc.DBAPIError, tried: str) -> MusterError:
    number = getattr(error.orig, "sqlite_errorcode", 0)
    state = getattr(error.orig, "sqlstate", "") or ""
    if state == POSTGRES_NO_RIGHT:
        return Unavailable(
            f"{tried}: the database's user has no right to do this ({_text(error)}); grant it. "
            "Audit needs CREATE on the schema to migrate, and SELECT and INSERT on its tables; "
            "commands that only read need SELECT"
        )
    if isinstance(error, exc.ProgrammingError) or "no such table" in _text(error):
        return Corrupt(
            f"{tried}: the schema is not the archive's ({_text(error)}); run `python -m "
            "services.audit migrate` first"
        )
    if isinstance(error, exc.IntegrityError):
        return Fenced(
            f"{tried}: another audit service has written there and leads now; this one ends, and "
            "follows after its next start. If both keep ending, check that no other cluster uses "
            "this archive"
        )
    if number in (SQLITE_FULL, SQLITE_IOERR_SHMSIZE) or state == POSTGRES_DISK_FULL:
        return DiskFull(
            f"{tried}: the disk is full; free space there, then the archive continues by itself"
        )
    if number in (SQLITE_CORRUPT, SQLITE_NOTADB) or state in POSTGRES_CORRUPT:
        return Corrupt(
            f"{tried}: the database is damaged ({_text(error)}); restore it from a backup: the "
            "audit service then reads later commits from the log"
        )
    return Unavailable(
        f"{tried}: {_text(error)}; check that the database can be reached, then try again"
    )


def _text(error: exc.DBAPIError) -> str:
    return " ".join(str(error.orig).split())
