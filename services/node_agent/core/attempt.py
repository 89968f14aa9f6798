"""One attempt on this node, as the agent's core knows it, and the stops that may end it.

Pure: `apply.py` changes it by what was observed, `decide.py` by what it asks for.
"""

from typing import Final

import msgspec

from libs.common.messages import StartOrder
from libs.common.model import AttemptRef, GpuId
from libs.common.reasons import TIME_LIMIT
from services.node_agent.core import device_use, hangs, hits, serving, shares
from services.node_agent.core import observations as o
from services.node_agent.core.standby import Standby


class Stop(msgspec.Struct, frozen=True):
    """A reason to end an attempt: the signal to send first, and the time until KILL."""

    reason: str
    signal: int
    grace_ms: int
    detail: str = ""


class Attempt(msgspec.Struct, kw_only=True):
    """One member of a job on this node.

    `queued` and `stored` are levels (`state.STARTED_LEVEL` ...): how far its facts were handed to
    the log, and how far the log acknowledged them. `ordered` is the scheduler's stop; `stop` is the
    one in force, which may be the agent's own; `stop_sent` is the one that the supervisor received.
    `health` is set for replicas, `ready_ms` once one is ready: the time since its start. `standby`
    is set for replicas that have one, `hit` after a device error, `slices` for MIG instances
    (memory slices per device). `checkpoint_at_stop_ns` is the last checkpoint before the stop was
    sent: a later one is the answer to the stop. For a batch of elements, `elements` is its journal;
    `elements_recorded` counts results, and `elements_begun` elements, that were handed to the log.
    """

    ref: AttemptRef
    phase: str
    seq: int = 0
    rank: int = 0
    order: StartOrder | None = None
    gpus: tuple[GpuId, ...] = ()
    slices: dict[GpuId, int] = {}
    ordered: Stop | None = None
    stop: Stop | None = None
    stop_sent: Stop | None = None
    kill_at_ns: int = 0
    killing: bool = False
    time_limit_s: int = 0
    grace_s: int = 0
    ignore_lease: bool = False
    executed: bool = False
    pid: int = 0
    began_ns: int = 0
    isolation: str = ""
    image: str = ""
    image_in_registry: bool = False
    exit: o.Exit | None = None
    exited_ns: int = 0
    checking: bool = False
    check_at_ns: int = 0
    checks: dict[str, str] | None = None
    clean: bool = False
    unclean: dict[GpuId, str] = {}
    refusal: str = ""
    health: serving.Health | None = None
    ready_ms: int = 0
    standby: Standby | None = None
    checkpointed_ns: int = 0
    checkpoint_recorded_ns: int = 0
    checkpoint_due_ns: int = 0
    checkpoint_at_stop_ns: int = 0
    hit: hits.Hit | None = None
    hang: hangs.Hang | None = None
    share: shares.Share | None = None
    use: device_use.Use = msgspec.field(default_factory=device_use.Use)
    elements: o.ElementsSeen | None = None
    elements_recorded: int = 0
    elements_begun: int = 0
    elements_due_ns: int = 0
    queued: int = 0
    stored: int = 0

    @property
    def joins_gpus(self) -> bool:
        """Return whether the attempt has several GPUs of this node that use links.

        MIG instances use none.
        """
        return len({uuid for uuid in self.gpus if uuid not in self.slices}) > 1


SIGTERM: Final = 15


def limit_at_ns(attempt: Attempt) -> int:
    """Return when the time limit passes, on this machine's boot clock; 0 for never.

    The limit counts from the start of the process.
    """
    if not attempt.time_limit_s or not attempt.began_ns:
        return 0
    return attempt.began_ns + attempt.time_limit_s * 1_000_000_000


def stop_at_limit(attempt: Attempt) -> None:
    """Stop the attempt for its time limit, unless a stop in force leaves less time."""
    attempt.stop = shorter_stop(attempt.stop, Stop(TIME_LIMIT, SIGTERM, attempt.grace_s * 1_000))


def shorter_stop(before: Stop | None, new: Stop) -> Stop:
    """Return the new stop if it leaves less time than the one before, else the one before.

    The scheduler's fold keeps the same rule, so a repeated stop changes nothing.
    """
    return new if before is None or new.grace_ms < before.grace_ms else before
