"""A device in the state: its holds, its health, and whether it takes new work.

Pure; changed by `device_fold.py`. `takes_work` is the one rule for new work: it depends on the
health, which the agent reports, and on the service, which operators set.
"""

from typing import Final

import msgspec

from libs.common.life import gpu_life
from libs.common.model import AttemptRef, Gpu, GpuHold, NodeId

# Number of a device's last errors that are kept: enough to tell a bad device from a bad job.
ERRORS_KEPT: Final = 16


class GpuError(msgspec.Struct, frozen=True):
    """An error of a device, with the attempts that held it.

    The time is of the node's wall clock.
    """

    error: str
    verdict: str
    jobs: tuple[AttemptRef, ...]
    at_ns: int


class Control(msgspec.Struct):
    """The last request for a control of a device (`device_controls.py`), and its outcome.

    `request` is the sequence of its commit. `outcome` is empty until the node has reported it.
    `in_force` is the value that the device has: of an earlier request, or set by the node itself.
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
    other fields are the node's reports on the device, kept here while another node has it. `told`
    are the outcomes of controls; their value and user are empty, because a node does not report
    them.
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
    """A device: its holds and its health.

    `holds` are in hundredths, by attempt key. `parts` are the holds that are isolated from others
    (MPS, MIG, time slices). `alone`: only jobs with one GPU of the node may use the device, because
    its fabric is not up. `kept` is what resident data holds of its memory, in bytes by `kept_key`.
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
    alone: bool = False
    kept: dict[str, int] = {}

    @property
    def held(self) -> int:
        return sum(self.holds.values())

    @property
    def takes_work(self) -> bool:
        return self.present and self.health in gpu_life.USABLE and self.service == gpu_life.ONLINE

    @property
    def away(self) -> str:
        """Return why the device takes no work, in one word: the reason of its health, or its
        service.
        """
        return (
            (self.reason or self.health)
            if self.health not in gpu_life.USABLE
            else "lost"
            if not self.present
            else self.service
        )
