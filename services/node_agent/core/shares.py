"""Detect a job that uses more than its share of a device's memory (time slices).

Pure. The agent samples the memory that its processes use, as far as the driver reports it
(`job_watch.py`); it warns the job first and ends it later. Between the samples, and until it ends,
such a job takes memory from the other jobs of the device. A hard limit needs MPS or MIG. Tests:
tests/unit/test_shares.py.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from libs.common.model import TIME_SLICE, WHOLE_GPU, GpuHold, GpuId
from services.node_agent.core.hangs import APART_NS, SECOND_NS

# At most one warning per job in this time.
WARN_EVERY_NS: Final = 60 * SECOND_NS


class Use(msgspec.Struct, frozen=True):
    """The memory that a job uses on a device, and its share of it."""

    used_bytes: int
    share_bytes: int


class Over(msgspec.Struct):
    """A job has used more than its share since `since_ns`; `warned`: JobOverShare was recorded."""

    uuid: GpuId
    use: Use
    since_ns: int
    looked_ns: int
    warned: bool = False


class Share(msgspec.Struct):
    """The shares of a job; `parts` are hundredths of each device."""

    parts: dict[GpuId, int]
    over: Over | None = None
    warn_not_before_ns: int = 0


def share_of(holds: Iterable[GpuHold]) -> Share | None:
    """Return the shares to watch; None for whole devices, and where MPS or MIG enforces them."""
    return share_of_parts(
        {
            hold.uuid: hold.share
            for hold in holds
            if hold.share < WHOLE_GPU and hold.isolation in ("", TIME_SLICE)
        }
    )


def share_of_parts(parts: dict[GpuId, int]) -> Share | None:
    """Return the shares of an adopted attempt; None if it has none."""
    return Share(parts) if parts else None


def note_sample(share: Share, used: Mapping[GpuId, Use], now_ns: int) -> None:
    """Note a sample. A device that does not report the use is not in `used` and does not count."""
    over = next(
        ((uuid, use) for uuid, use in used.items() if use.used_bytes > use.share_bytes), None
    )
    before, share.over = share.over, Over(*over, now_ns, now_ns) if over is not None else None
    if share.over is not None and before is not None and now_ns - before.looked_ns <= APART_NS:
        share.over.since_ns, share.over.warned = before.since_ns, before.warned


def take_warning(share: Share, now_ns: int) -> Over | None:
    """Return the warning that is due now; once per excess."""
    over = share.over
    if over is None or over.warned or now_ns < share.warn_not_before_ns:
        return None
    over.warned, share.warn_not_before_ns = True, now_ns + WARN_EVERY_NS
    return over


def end_reason(share: Share, grace_s: int) -> str:
    """Return why the job must end; empty if it may go on. Without a grace no job ends."""
    over = share.over
    if over is None or not grace_s or over.looked_ns - over.since_ns < grace_s * SECOND_NS:
        return ""
    return (
        f"{over.use.used_bytes} bytes of GPU {over.uuid} for {grace_s} s, its share is "
        f"{over.use.share_bytes}"
    )
