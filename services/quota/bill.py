"""The lines of a replica's charge: which key's requests caused which part of it.

Pure. The parts never exceed the charge: what gateways counted is scaled down to it, which happens
when several gateways each saw only their own requests at a replica. What is left is idle time.
"""

from libs.common.facts import ChargeLine
from libs.common.model import TenantId
from libs.common.state.cluster import Charge, Job


def lines_of(job: Job | None, charge: Charge) -> tuple[ChargeLine, ...]:
    """Return the lines of a charge, the largest first; none for a job that is no replica."""
    used = job.used.get(charge.attempt, {}) if job is not None else {}
    total = sum(used.values())
    lines = [
        _line(key, share * charge.share_ms // total if total > charge.share_ms else share)
        for key, share in used.items()
    ]
    return tuple(sorted(lines, key=lambda line: (-line.share_ms, line.tenant, line.key_id)))


def _line(key: str, share_ms: int) -> ChargeLine:
    tenant, user, key_id = key.split(" ")
    return ChargeLine(TenantId(tenant), user, key_id, share_ms)
