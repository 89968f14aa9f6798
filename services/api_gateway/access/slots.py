"""Bounds how much of some kinds of work a tenant may have under way; more of it waits in order.

Answers of nodes and old commits come over one connection to the log's servers, one after the other,
and the scheduler answers one question at a time. If a tenant asked for hundreds at once, every
answer to another tenant would come behind them. Input is bounded for each job instead, because a
job that does not read its input must not delay that of other jobs. Tests: tests/unit/test_slots.py.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

# The kinds of work: pieces of output from nodes, scans of old commits, explanations, diagnoses of
# jobs, questions to one node, questions to many nodes, look-ups in the archive, and input for a
# job, which may wait until the job reads it.
OUTPUT: Final = "output"
SCAN: Final = "scan"
QUESTION: Final = "question"
DIAGNOSIS: Final = "diagnosis"
NODE: Final = "node"
NODES: Final = "nodes"
ARCHIVE: Final = "archive"
INPUT: Final = "input"
MOST: Final = {
    OUTPUT: 2,
    SCAN: 1,
    QUESTION: 1,
    DIAGNOSIS: 2,
    NODE: 4,
    NODES: 2,
    ARCHIVE: 1,
    INPUT: 2,
}


class Slots:
    """The places of all tenants and, for INPUT, of all jobs: MOST of each kind for each of them."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], asyncio.Semaphore] = {}
        self._users: dict[tuple[str, str], int] = {}

    @asynccontextmanager
    async def of(self, kind: str, owner: str) -> AsyncGenerator[None]:
        """Hold one of the places of a tenant or job; wait until one is free."""
        key = (kind, owner)
        places = self._of.setdefault(key, asyncio.Semaphore(MOST[kind]))
        self._users[key] = self._users.get(key, 0) + 1
        try:
            async with places:
                yield
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._of[key]
