"""Random facts about locks: those that gateways and the scheduler could record now, and invalid
ones.
"""

from collections.abc import Iterator
from random import Random

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.life import lock_life
from libs.common.model import TenantId
from libs.common.state.cluster import Cluster
from libs.common.state.locks import ClaimKey, all_claims, claim_of, first_waiting
from tests.property.fact_values import TENANTS

LOCKS = ("a", "b")
HOLDERS = ("h1", "h2", "h3")
HOUR_MS = 3_600_000


def by_gateways(chance: Random) -> Iterator[AnyFact]:
    key = ClaimKey(chance.choice(TENANTS), chance.choice(LOCKS), chance.choice(HOLDERS))
    # Longer than a history: a scheduler that starts later counts times from then.
    yield f.LockRequested(**key._asdict(), ttl_ms=HOUR_MS, wait_ms=chance.choice((0, HOUR_MS)))
    yield f.LockRenewRequested(**key._asdict())
    yield f.LockReleaseRequested(**key._asdict())


def by_scheduler(cluster: Cluster) -> Iterator[AnyFact]:
    for key in all_claims(cluster.locks):
        own, claim = cluster.locks[key.tenant], claim_of(cluster.locks, key)
        assert claim is not None
        lock = own.locks[key.lock]
        if lock.is_free and first_waiting(lock) is claim:
            yield f.LockGranted(**key._asdict(), token=own.token_last + 1, expires_ns=9)
        if claim.state == lock_life.HELD:
            yield f.LockRenewed(
                **key._asdict(), token=claim.token, asked=claim.asked, expires_ns=10
            )
        yield f.LockFreed(**key._asdict(), token=claim.token, reason=lock_life.EXPIRED)


def wild(word: str, number: int) -> tuple[AnyFact, ...]:
    key = ClaimKey(TenantId(word), word, word)
    return (
        f.LockRequested(**key._asdict(), ttl_ms=number, wait_ms=number),
        f.LockRenewRequested(**key._asdict()),
        f.LockReleaseRequested(**key._asdict()),
        f.LockGranted(**key._asdict(), token=number, expires_ns=number),
        f.LockRenewed(**key._asdict(), token=number, asked=number, expires_ns=number),
        f.LockFreed(**key._asdict(), token=number, reason=word),
    )
