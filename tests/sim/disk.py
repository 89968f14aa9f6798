"""The disk of a simulated machine: what its supervisors and its agent keep there."""

import msgspec

from libs.common.model import AttemptRef, GpuId
from services.node_agent.core.observations import Exit, Probe
from services.node_agent.peers.peers import Kept


class JobFiles(msgspec.Struct):
    """A job's directory: it survives the agent, and the machine unless the disk is lost.

    `claimed` is set by a supervisor that began.
    """

    ref: AttemptRef
    rank: int
    gpus: tuple[GpuId, ...]
    seq: int
    time_limit_s: int = 0
    grace_s: int = 0
    probe: Probe | None = None
    ignore_lease: bool = False
    began_ns: int = 0
    forgotten: bool = False
    claimed: bool = False
    checkpointed_ns: int = 0
    exit: Exit | None = None
    slices: dict[GpuId, int] = {}


class Disk:
    """Data that survives a power cut: supervisors' directories, the agent's incarnation and its
    roster.

    The lease file is on it too, but its deadline has no meaning after the next boot.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.lease_ns = 0
        self.notice_s = 2.0
        self.jobs: dict[AttemptRef, JobFiles] = {}
        self.incarnation = 0
        self.files: dict[str, bytes] = {}
        self.kept = Kept()
