"""What the agent's core asks for: one small frozen struct per action, carried out by
`service.Agent`.

Pure. An action names what is to be done, never how; each is asked for once, and what became of it
comes back as an observation.
"""

import msgspec

from libs.common.facts import NodeFact
from libs.common.messages import ControlOrder, StartOrder
from libs.common.model import AttemptRef, GpuId
from services.node_agent.core.observations import Mark


class ExtendLease(msgspec.Struct, frozen=True):
    """Write the deadline (boot clock) where every supervisor reads it, unless a later
    one is there.
    """

    deadline_ns: int


class ReplaceLease(msgspec.Struct, frozen=True):
    """The same of a newer term's first lease: whatever is there, a planned stop's long lease before
    all, is over.
    """

    deadline_ns: int


class StartJob(msgspec.Struct, frozen=True):
    order: StartOrder


class StopJob(msgspec.Struct, frozen=True):
    """The signal now, KILL after the grace."""

    ref: AttemptRef
    signal: int
    grace_ms: int


class KillJob(msgspec.Struct, frozen=True):
    ref: AttemptRef


class CheckRelease(msgspec.Struct, frozen=True):
    """Find out whether anything of the attempt is left: processes (unless `processes_gone`),
    holders of its devices since it began (boot clock), MIG instances (`cut`: it had some).

    Of one that `failed` what its devices' drivers say comes first.
    """

    ref: AttemptRef
    gpus: tuple[GpuId, ...]
    processes_gone: bool
    failed: bool = False
    began_ns: int = 0
    cut: bool = False


class ProbeReplica(msgspec.Struct, frozen=True):
    """Ask a replica of this node whether it is ready; 0 stands for the node's own setting."""

    ref: AttemptRef
    port: int
    path: str
    answer_s: int = 0


class ForgetJob(msgspec.Struct, frozen=True):
    """Its last fact is in the log: copy the end of these streams off the node, then close its
    directory.
    """

    ref: AttemptRef
    rank: int
    streams: tuple[str, ...] = ()


class Record(msgspec.Struct, frozen=True):
    """One commit. The marks come back in FactsStored."""

    facts: tuple[NodeFact, ...]
    marks: tuple[Mark, ...]


class ResetDevice(msgspec.Struct, frozen=True):
    """Save what can be known of the device, reset it, put `controls` back, look at it."""

    uuid: GpuId
    reason: str
    controls: tuple[ControlOrder, ...] = ()


class ControlDevice(msgspec.Struct, frozen=True):
    """Tell a device to be otherwise."""

    order: ControlOrder


class SaveEvidence(msgspec.Struct, frozen=True):
    """Save what can be known of a job that hangs, and of its devices."""

    ref: AttemptRef
    gpus: tuple[GpuId, ...]
    reason: str


class KeepDevices(msgspec.Struct, frozen=True):
    """Keep what is known of the devices for the next agent, before the log hears of it."""

    data: bytes


class AskDesired(msgspec.Struct, frozen=True):
    """Ask the scheduler for the full desired state of this node."""


class BeginAgain(msgspec.Struct, frozen=True):
    """Nothing is left here: register as a new incarnation."""

    reason: str


Action = (
    ExtendLease
    | ReplaceLease
    | StartJob
    | StopJob
    | KillJob
    | CheckRelease
    | ProbeReplica
    | ForgetJob
    | Record
    | ResetDevice
    | ControlDevice
    | SaveEvidence
    | KeepDevices
    | AskDesired
    | BeginAgain
)
