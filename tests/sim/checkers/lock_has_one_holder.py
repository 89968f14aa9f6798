"""A lock has at most one holder at any time, grants follow the queue, and no token is used twice.

A holder is a client that works under the lock, by the clock of the run. In the log a lock is
granted only while it is free, and to the claim that has waited longest. In the end every lock is
free.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

from libs.common import facts as f
from libs.common.change import Stamp
from libs.common.facts import AnyFact, Commit, Unknown
from libs.common.state.cluster import Cluster
from libs.common.state.locks import first_waiting, lock_named
from tests.sim.checkers.checker import Checker
from tests.sim.lock_users import Span

if TYPE_CHECKING:
    from tests.sim.world import World


class LockHasOneHolder(Checker):
    """`tokens`: the last token of each tenant."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.tokens: dict[str, int] = {}

    def before(
        self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit
    ) -> None:
        if not isinstance(fact, f.LockGranted) or cluster.epoch != stamp.epoch:
            return
        lock = lock_named(cluster.locks, fact.tenant, fact.lock)
        if lock is None:
            self.fail(f"lock {fact.lock} is granted to {fact.holder}, which has no claim on it")
            return
        following = first_waiting(lock)
        if lock.held_by:
            self.fail(f"lock {fact.lock} is granted to {fact.holder} while {lock.held_by} has it")
        elif following is None or following.holder != fact.holder:
            self.fail(f"lock {fact.lock} is granted to {fact.holder} out of turn")
        if fact.token <= self.tokens.get(fact.tenant, 0):
            self.fail(f"token {fact.token} of tenant {fact.tenant} is used twice")
        self.tokens[fact.tenant] = fact.token

    def finished(self) -> None:
        users = self.world.lock_users
        for message in broken(users.spans):
            self.fail(message)
        if not users.at_rest:
            self.fail("a lock is held or waited for although its users are gone")


def broken(spans: Iterable[Span]) -> list[str]:
    """Return how the times at which users worked contradict the rule."""
    ordered = sorted(spans, key=lambda span: (span.lock, span.from_s, span.to_s))
    found = []
    for one, other in pairwise(ordered):
        if one.lock != other.lock:
            continue
        if other.from_s < one.to_s:
            found.append(
                f"{one.holder} and {other.holder} work under lock {one.lock} at {other.from_s:.2f}"
            )
        if other.token <= one.token:
            found.append(f"lock {one.lock}: token {other.token} follows token {one.token}")
    return found
