"""Helps tests of the archive: commits to archive, edits behind its back, findings as short rows."""

from collections.abc import AsyncIterator

import msgpack
import sqlalchemy as sa

from libs.common.transport.log import Entry
from services.audit.chain.chain import Link
from services.audit.chain.verify import Report


async def no_head() -> None:
    """The newest signed head where none is signed."""


def empty(url: str) -> None:
    with engine(url).begin() as connection:
        for table in ("commits", "facts", "alembic_version"):
            connection.execute(sa.text(f"drop table if exists {table}"))


def engine(url: str) -> sa.Engine:
    return sa.create_engine(
        url.replace("postgresql://", "postgresql+psycopg://"), poolclass=sa.NullPool
    )


def tamper(url: str, *statements: str) -> None:
    with engine(url).begin() as connection:
        for statement in statements:
            connection.execute(sa.text(statement))


def commit(
    seq: int, *facts: object, at_ns: object = None, subject: str = "facts.scheduler"
) -> Entry:
    at = seq * 10 if at_ns is None else at_ns
    data = bytes(msgpack.packb([1, 1, subject, seq, 1, at, seq - 1, list(facts)]))
    return Entry(seq, subject, data)


def entry(seq: int, padding: int = 0) -> Entry:
    placed = {"kind": "job.placed", "job_id": f"job-{seq}", "padding": "x" * padding}
    return commit(
        seq, placed, {"kind": "job.stop_ordered", "job_id": f"job-{seq}", "node_id": f"n{seq % 2}"}
    )


def entries(first: int, last: int, padding: int = 0) -> list[Entry]:
    return [entry(seq, padding) for seq in range(first, last + 1)]


async def stream(*batches: list[Entry]) -> AsyncIterator[list[Entry]]:
    for batch in batches:
        yield batch


def wrongs(report: Report) -> list[tuple[int, int, str]]:
    return [(finding.index, finding.seq, finding.wrong) for finding in report.findings]


def noted(*links: Link) -> dict[int, str]:
    return {link.seq: link.hash for link in links}
