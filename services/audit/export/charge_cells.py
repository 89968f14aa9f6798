"""Splits a charge into cells: the part of each user or key, on each model of GPU, at each price.

Pure. The shares of the cells add up to the charge, and so do their costs, busy times and energies,
because each amount is split by `prices.spread`. Tests: tests/unit/test_charge_cells.py.
"""

from typing import Final, NamedTuple

from libs.common.facts import ChargePart, UsageCharged
from libs.common.messages.usage_messages import IDLE, JOB, REQUESTS
from libs.common.prices import spread


class Cell(NamedTuple):
    """One part of a charge; `model` is empty for jobs that are no replicas."""

    tenant: str
    user: str
    key: str
    model: str
    kind: str
    gpu: str
    currency: str
    share_ms: int
    cost_micros: int
    busy_share_ms: int = 0
    idle_share_ms: int = 0
    energy_mj: int = 0


class _Owner(NamedTuple):
    tenant: str
    user: str
    key: str
    kind: str
    share_ms: int


NOBODY: Final = ""


def cells_of(fact: UsageCharged) -> list[Cell]:
    """Return the cells of a charge; at least one."""
    owners = _owners(fact)
    weights = [max(0, owner.share_ms) for owner in owners]
    cells = [
        cell
        for part in parts_of(fact)
        for cell in _of_part(part, owners, spread(part.share_ms, weights), model_of(fact.job_id))
    ]
    shares = [cell.share_ms for cell in cells]
    energy_mj = max(0, fact.use.energy_mj) if fact.use is not None else 0
    busy_and_idle = split_use(fact, shares)
    energies = spread(energy_mj, shares)
    return [
        cell._replace(busy_share_ms=busy, idle_share_ms=idle, energy_mj=energy)
        for cell, (busy, idle), energy in zip(cells, busy_and_idle, energies, strict=True)
    ]


def split_use(fact: UsageCharged, shares: list[int]) -> list[tuple[int, int]]:
    """Split the busy and the idle time of a charge; no part has more of both than its share."""
    measured = spread(fact.busy_share_ms + fact.idle_share_ms, shares)
    busy = spread(fact.busy_share_ms, measured)
    return [(part, whole - part) for part, whole in zip(busy, measured, strict=True)]


def model_of(job_id: str) -> str:
    """Return the model of a replica: its id is that name, a hyphen and a number.

    Empty for a user's job, whose id contains no hyphen.
    """
    return job_id.rpartition("-")[0]


def parts_of(fact: UsageCharged) -> tuple[ChargePart, ...]:
    """Return the parts by model of GPU and price; one without a price for an older fact."""
    whole = (ChargePart(gpu="", share_ms=fact.share_ms),)
    is_whole = sum(part.share_ms for part in fact.parts) == fact.share_ms
    return fact.parts if fact.parts and is_whole else whole


def _owners(fact: UsageCharged) -> list[_Owner]:
    """Return whose parts the charge has: the job's user, or the keys and the idle rest."""
    if not model_of(fact.job_id):
        return [_Owner(fact.tenant, fact.user, NOBODY, JOB, fact.share_ms)]
    keys = [
        _Owner(line.tenant, line.user, line.key_id, REQUESTS, line.share_ms) for line in fact.lines
    ]
    idle_ms = fact.share_ms - sum(line.share_ms for line in fact.lines)
    return [*keys, _Owner(fact.tenant, NOBODY, NOBODY, IDLE, idle_ms)]


def _of_part(part: ChargePart, owners: list[_Owner], shares: list[int], model: str) -> list[Cell]:
    costs = spread(part.cost_micros, shares)
    return [
        Cell(
            tenant=owner.tenant,
            user=owner.user,
            key=owner.key,
            model=model,
            kind=owner.kind,
            gpu=part.gpu,
            currency=part.currency,
            share_ms=share_ms,
            cost_micros=cost,
        )
        for owner, share_ms, cost in zip(owners, shares, costs, strict=True)
    ]
