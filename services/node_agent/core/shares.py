"""Whether a job with a plain part of a device keeps to its part of the memory: it is warned, then
ended.

Pure, and soft.

What its processes use is sampled, by whatever the driver says of them (`job_watch.py`): until
somebody looks, and while it is warned, it takes memory from who shares the device. What must hold
needs MPS or MIG. Tests: tests/unit/test_shares.py.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from libs.common.model import TIME_SLICE, WHOLE_GPU, GpuHold, GpuId
from services.node_agent.core.hangs import APART_NS, SECOND_NS

# A job at the edge of its part is warned so often.
WARN_EVERY_NS: Final = 60 * SECOND_NS


class Use(msgspec.Struct, frozen=True):
    """What the processes of a job use of a device's memory, and its part of it."""

    used_bytes: int
    share_bytes: int


class Over(msgspec.Struct):
    """A job uses more than its part, since `since_ns`; `said`: it was warned."""

    uuid: GpuId
    use: Use
    since_ns: int
    looked_ns: int
    said: bool = False


class Share(msgspec.Struct):
    """`parts` are the hundredths that it has of each device."""

    parts: dict[GpuId, int]
    over: Over | None = None
    warn_not_before_ns: int = 0


def of(holds: Iterable[GpuHold]) -> Share | None:
    """None where nothing is to be watched: whole devices, or parts that something harder keeps
    apart.
    """
    return found(
        {
            hold.uuid: hold.share
            for hold in holds
            if hold.share < WHOLE_GPU and hold.isolation in ("", TIME_SLICE)
        }
    )


def found(parts: dict[GpuId, int]) -> Share | None:
    """The same under the next agent."""
    return Share(parts) if parts else None


def looked(share: Share, used: Mapping[GpuId, Use], now_ns: int) -> None:
    """What a device does not tell is not in `used`, and is not held against the job."""
    over = next(
        ((uuid, use) for uuid, use in used.items() if use.used_bytes > use.share_bytes), None
    )
    before, share.over = share.over, Over(*over, now_ns, now_ns) if over is not None else None
    if share.over is not None and before is not None and now_ns - before.looked_ns <= APART_NS:
        share.over.since_ns, share.over.said = before.since_ns, before.said


def warn(share: Share, now_ns: int) -> Over | None:
    """What is to be said now; once as long as it lasts."""
    over = share.over
    if over is None or over.said or now_ns < share.warn_not_before_ns:
        return None
    over.said, share.warn_not_before_ns = True, now_ns + WARN_EVERY_NS
    return over


def too_long(share: Share, grace_s: int) -> str:
    """Why it is ended; empty while it is not. Without a grace none is ended."""
    over = share.over
    if over is None or not grace_s or over.looked_ns - over.since_ns < grace_s * SECOND_NS:
        return ""
    return (
        f"{over.use.used_bytes} bytes of GPU {over.uuid} for {grace_s} s, its part is "
        f"{over.use.share_bytes}"
    )
