"""Groups of facts that wait for a commit: those of one share in order, the shares in turns.

A share is a tenant, or empty for all facts without one. A tenant that submits thousands of jobs at
once fills many commits. A group of another tenant is in the next one all the same. Tests:
tests/unit/test_fair_groups.py.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from libs.common.facts import AnyFact


class Group(NamedTuple):
    """Facts that stay in one commit, and the sequence applied when they were decided."""

    facts: Sequence[AnyFact]
    future: asyncio.Future[int]
    seen: int


class FairGroups:
    """The waiting groups of one writer.

    `_again` holds groups that were taken and did not fit into a commit; they come first.
    """

    def __init__(self) -> None:
        self._again: deque[Group] = deque()
        self._shares: dict[str, deque[Group]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Group]:
        """Yield all groups, in no order that counts."""
        yield from self._again
        for groups in self._shares.values():
            yield from groups

    def add(self, group: Group, share: str) -> None:
        """Add a group behind the others of its share."""
        self._shares.setdefault(share, deque()).append(group)
        self._count += 1

    def next(self) -> Group:
        """Return the group that `take` takes. There must be one."""
        return self._again[0] if self._again else next(iter(self._shares.values()))[0]

    def take(self) -> Group:
        """Take the next group; its share comes behind the others. There must be one."""
        self._count -= 1
        if self._again:
            return self._again.popleft()
        share = next(iter(self._shares))
        groups = self._shares.pop(share)
        group = groups.popleft()
        if groups:
            self._shares[share] = groups
        return group

    def put_back(self, groups: Sequence[Group]) -> None:
        """Put groups back that were taken last, in the same order."""
        self._again.extendleft(reversed(groups))
        self._count += len(groups)

    def remove(self, future: asyncio.Future[int]) -> bool:
        """Remove the group with this future; return whether it was there."""
        for share, groups in (("", self._again), *self._shares.items()):
            for index, group in enumerate(groups):
                if group.future is future:
                    del groups[index]
                    self._count -= 1
                    if not groups and groups is not self._again:
                        del self._shares[share]
                    return True
        return False
