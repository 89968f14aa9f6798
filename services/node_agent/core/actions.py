"""The actions that the agent's core asks for, one frozen struct each; `service.Agent` carries them
out.

Pure. An action says what to do, never how. It is asked for once, and its result comes back as an
observation.
"""

from typing import Final

import msgspec

from libs.common.facts import NodeFact
from libs.common.messages import ControlOrder, KeepOrder, ProbeOrder, StartOrder
from libs.common.model import AttemptRef, GpuId
from libs.common.timing import NOTICE_MS
from services.node_agent.core.observations import Mark

NOTICE_NS: Final = NOTICE_MS * 1_000_000


class ExtendLease(msgspec.Struct, frozen=True):
    """Write the deadline (boot clock) to the lease file, unless the file has a later one.

    Supervisors ask their jobs to end `notice_ns` before it.
    """

    deadline_ns: int
    notice_ns: int = NOTICE_NS


class ReplaceLease(msgspec.Struct, frozen=True):
    """Write the deadline to the lease file, also if the file has a later one.

    The first lease of a newer term replaces everything before it, for example the long lease of a
    planned stop.
    """

    deadline_ns: int
    notice_ns: int = NOTICE_NS


class StartJob(msgspec.Struct, frozen=True):
    """Start one attempt."""

    order: StartOrder


class StopJob(msgspec.Struct, frozen=True):
    """Send the signal now and KILL after the grace."""

    ref: AttemptRef
    signal: int
    grace_ms: int


class KillJob(msgspec.Struct, frozen=True):
    """Kill all processes of the attempt now."""

    ref: AttemptRef


class CheckRelease(msgspec.Struct, frozen=True):
    """Check whether the attempt left anything behind.

    That may be processes (unless `processes_gone`), holders of its devices since `began_ns` (boot
    clock), or MIG instances (`cut`: it had some). If it `failed`, the drivers are asked for errors
    first.
    """

    ref: AttemptRef
    gpus: tuple[GpuId, ...]
    processes_gone: bool
    failed: bool = False
    began_ns: int = 0
    cut: bool = False


class ProbeReplica(msgspec.Struct, frozen=True):
    """Ask a replica of this node whether it is ready. `answer_s` 0 means the node's own setting.

    `keyed`: with the key of the attempt.
    """

    ref: AttemptRef
    port: int
    path: str
    answer_s: int = 0
    keyed: bool = False


class ForgetJob(msgspec.Struct, frozen=True):
    """Copy the end of the output streams to the store, then close the directory.

    The attempt's last fact is in the log. `healthy`: it was a replica that answered until it was
    stopped, and was ready `ready_ms` after its start (0: unknown).
    """

    ref: AttemptRef
    rank: int
    streams: tuple[str, ...] = ()
    healthy: bool = False
    ready_ms: int = 0


class KeepData(msgspec.Struct, frozen=True):
    """Bring an entry of resident data to its desired state, or `remove` it."""

    order: KeepOrder
    remove: bool = False


class Record(msgspec.Struct, frozen=True):
    """Append these facts to the log as one commit. `marks` come back in FactsStored."""

    facts: tuple[NodeFact, ...]
    marks: tuple[Mark, ...]


class ResetDevice(msgspec.Struct, frozen=True):
    """Save the evidence of the device, reset it, restore its `controls`, and examine it."""

    uuid: GpuId
    reason: str
    controls: tuple[ControlOrder, ...] = ()


class ControlDevice(msgspec.Struct, frozen=True):
    """Change one setting of a device."""

    order: ControlOrder


class SaveEvidence(msgspec.Struct, frozen=True):
    """Save the evidence of a job that hangs, and of its devices."""

    ref: AttemptRef
    gpus: tuple[GpuId, ...]
    reason: str


class KeepDevices(msgspec.Struct, frozen=True):
    """Store the state of the devices on disk for the next agent, before the log has it."""

    data: bytes


class AskDesired(msgspec.Struct, frozen=True):
    """Ask the scheduler for the full desired state of this node."""


class RegisterAgain(msgspec.Struct, frozen=True):
    """Register this node as a new incarnation."""

    reason: str


class ProbeFabric(msgspec.Struct, frozen=True):
    """Measure the link to a peer once, and record what this node saw."""

    order: ProbeOrder


Action = (
    ExtendLease
    | ReplaceLease
    | StartJob
    | StopJob
    | KillJob
    | CheckRelease
    | ProbeReplica
    | ForgetJob
    | KeepData
    | Record
    | ResetDevice
    | ControlDevice
    | SaveEvidence
    | KeepDevices
    | AskDesired
    | RegisterAgain
    | ProbeFabric
)
