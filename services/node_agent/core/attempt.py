"""One member of an attempt, as its node's agent knows it.

Pure: `state.py` changes it by what is seen, `decide.py` by what it asks for.
"""

import msgspec

from libs.common.messages import StartOrder
from libs.common.model import AttemptRef, GpuId
from services.node_agent.core import hangs, hits, serving, shares
from services.node_agent.core import observations as o


class Stop(msgspec.Struct, frozen=True):
    reason: str
    signal: int
    grace_ms: int
    detail: str = ""


class Attempt(msgspec.Struct, kw_only=True):
    """One member here.

    `queued` and `stored` are levels: which of its facts were handed to the log, and acknowledged.
    `ordered` is the stop that the scheduler wants, `stop` the one that counts, the agent's own
    reasons with it. `health` is a replica's alone, `hit` the error of a device that it had,
    `slices` what its MIG instances have of each device. `unasked_ns` is the last checkpoint that
    was known when it was told to stop: a later one is the answer.
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
    told: Stop | None = None
    kill_at_ns: int = 0
    killing: bool = False
    time_limit_s: int = 0
    grace_s: int = 0
    ignore_lease: bool = False
    executed: bool = False
    pid: int = 0
    began_ns: int = 0
    isolation: str = ""
    exit: o.Exit | None = None
    exited_ns: int = 0
    checking: bool = False
    check_at_ns: int = 0
    checks: dict[str, str] | None = None
    clean: bool = False
    unclean: dict[GpuId, str] = {}
    refusal: str = ""
    health: serving.Health | None = None
    checkpointed_ns: int = 0
    checkpoint_said_ns: int = 0
    checkpoint_again_ns: int = 0
    unasked_ns: int = 0
    hit: hits.Hit | None = None
    hang: hangs.Hang | None = None
    share: shares.Share | None = None
    queued: int = 0
    stored: int = 0

    @property
    def joins_gpus(self) -> bool:
        """Return whether the attempt has several GPUs of this node that use links.

        MIG instances use none.
        """
        return len({uuid for uuid in self.gpus if uuid not in self.slices}) > 1
