"""A device as the facts have made it: who holds it, how it is, and whether work is let onto it.

Pure; folded by `device_fold.py`.

`takes_work` is the one rule for where new work may go: its health (the agent's word) and its
service (the operators').
"""

from typing import Final

import msgspec

from libs.common.life import gpu_life
from libs.common.model import AttemptRef, Gpu, GpuHold, NodeId

# So many of a device's last errors are kept: enough to tell a bad device from a bad job.
ERRORS_KEPT: Final = 16


class GpuError(msgspec.Struct, frozen=True):
    """One that was seen, with the attempts that had the device then.

    The time is of the node's wall clock.
    """

    error: str
    verdict: str
    jobs: tuple[AttemptRef, ...]
    at_ns: int


class Control(msgspec.Struct):
    """What a device was told to be last (`device_controls.py`): the wish by its `request`, the
    sequence of its commit, and what became of it; `outcome` is empty until the node has said.

    `in_force` is what the node did last, the wish before this one or its own doing.
    """

    value: str = ""
    request: int = 0
    user: str = ""
    outcome: str = ""
    detail: str = ""
    in_force: str = ""


class Claim(msgspec.Struct):
    """A node's claim on a UUID that several nodes registered (`claim_fold.py`).

    `births` are its registrations with this UUID, as (incarnation, sequence), oldest first. The
    rest is what the node said of the device, kept here while another node has it. `told` is what
    became of its controls; the value and the user there are empty, for the node does not say them.
    """

    node_id: NodeId
    gpu: Gpu
    births: list[tuple[int, int]]
    health: str = gpu_life.HEALTHY
    reason: str = ""
    detail: str = ""
    verdict: str = ""
    alone: bool = False
    errors: list[GpuError] = []
    told: dict[str, Control] = {}


class GpuView(msgspec.Struct):
    """A device: who holds how much of it, and its health.

    `holds` is by attempt key, in hundredths; `parts` are those of the holds that are kept apart
    from others (MPS, MIG, time slices).
    """

    node_id: NodeId
    gpu: Gpu
    present: bool = True
    health: str = gpu_life.HEALTHY
    reason: str = ""
    detail: str = ""
    holds: dict[str, int] = {}
    parts: dict[str, GpuHold] = {}
    verdict: str = ""
    service: str = gpu_life.ONLINE
    errors: list[GpuError] = []
    controls: dict[str, Control] = {}
    # Whether only jobs that have one GPU of the node may use it: its fabric is not up.
    alone: bool = False

    @property
    def held(self) -> int:
        return sum(self.holds.values())

    @property
    def takes_work(self) -> bool:
        return self.present and self.health in gpu_life.USABLE and self.service == gpu_life.ONLINE

    @property
    def away(self) -> str:
        """Why it takes no work, in a word: its health's reason before the operators' wish."""
        return (
            (self.reason or self.health)
            if self.health not in gpu_life.USABLE
            else "lost"
            if not self.present
            else self.service
        )
