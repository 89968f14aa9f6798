"""Names and values of which random facts are made (facts_of_all_kinds.py, invalid_facts.py)."""

from random import Random
from typing import Any, Final

from libs.common.life import job_life
from libs.common.model import (
    WHOLE_GPU,
    Allocation,
    Array,
    GpuId,
    JobId,
    NodeId,
    TenantId,
)
from libs.common.state.ordering import AFTER

NODES: Final = tuple(NodeId(name) for name in ("n1", "n2", "n3"))
GPUS: Final = tuple(GpuId(f"g{number}") for number in range(1, 6))
JOBS: Final = tuple(JobId(f"j{number}") for number in range(1, 7))
MODELS: Final = ("m1", "m2")
# A state directory's name; empty in what was recorded before there were any.
DIRECTORIES: Final = ("", "one", "one", "other")
KEYS: Final = ("k1", "k2")
TENANTS: Final = tuple(TenantId(name) for name in ("default", "physics"))
SHARES: Final = (25, 50, WHOLE_GPU)
OUTCOMES: Final = (job_life.COMPLETED, job_life.FAILED, job_life.CANCELLED)


def order_fields(chance: Random) -> dict[str, Any]:
    """Return random dependencies and order fields; a few jobs depend on one that is over or
    unknown.
    """
    array = (
        Array(((0, chance.randrange(3), 1),), chance.randrange(3), chance.random() < 0.5)
        if chance.random() < 0.25
        else None
    )
    after = tuple(
        (chance.choice(AFTER), chance.choice(JOBS)) for _ in range(chance.choice((0, 0, 1, 2)))
    )
    allocation = chance.choice((None, None, None, Allocation(9, 3), Allocation(9, 3)))
    return {
        "allocation": allocation,
        "after": after,
        "singleton": chance.random() < 0.3,
        "hold": chance.random() < 0.1,
        "cpus_milli": chance.choice((0, 500)),
        "array": array if allocation is None else None,
    }
