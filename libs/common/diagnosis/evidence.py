"""The evidence of a diagnosis: what one node's collectors saw of a job, and the verdict. Pure.

It travels from agent to gateway, and the gateway's answer contains it. A reading that a node does
not have is -1 or empty, and `notes` says which collector failed and why: an unknown value is never
a zero.
"""

from typing import Final

import msgspec

from libs.common.model import JobId, NodeId

# Kinds of verdicts. docs/diagnose.md explains each.
DEAD: Final = "dead"
STOPPED: Final = "stopped"
SILENT: Final = "silent"
BEHIND: Final = "behind"
MISMATCH: Final = "mismatch"
APART: Final = "apart"
LINK: Final = "link"
INPUT: Final = "input"
SLOW: Final = "slow"
NONE: Final = "none"
KINDS: Final = (DEAD, STOPPED, SILENT, BEHIND, MISMATCH, APART, LINK, INPUT, SLOW, NONE)

# Processes in the evidence of one node, frames of a stack, looks at each stack.
PROCESSES_MAX: Final = 128
FRAMES_MAX: Final = 24
LOOKS: Final = 3
TEXT_MAX: Final = 200
COLLECTIVES_MAX: Final = 32
SUSPECTS_MAX: Final = 16
GROUPS_MAX: Final = 8
NOTES_MAX: Final = 16


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """A frame of a Python stack."""

    function: str
    file: str
    line: int


class Collective(msgspec.Struct, frozen=True):
    """The last collective of a process in one process group, by its own recorder.

    `seq` counts the collectives of the group. `ended`: it is complete. `ranks` are the members of
    the group, empty if the recorder does not have them.
    """

    group: str
    seq: int
    op: str
    ended: bool = False
    ranks: tuple[int, ...] = ()


class ProcessSeen(msgspec.Struct, frozen=True):
    """A process that is a rank of the job.

    `world` and `local_world` are the numbers of ranks of the job and of the node, from its
    environment (-1: unknown). `state` is the kernel's letter; `waits_in` the kernel function of its
    main thread. `cpu_ms` and `moved_bytes` grew during `watched_ms`. `looks` are stacks of the main
    thread, the innermost frame first, taken by `looked_by`.
    `gpu` is the device of its local rank.
    """

    rank: int
    pid: int
    name: str
    state: str
    world: int = -1
    local_world: int = -1
    waits_in: str = ""
    cpu_ms: int = -1
    moved_bytes: int = -1
    watched_ms: int = 0
    threads: int = 0
    looks: tuple[tuple[Frame, ...], ...] = ()
    looked_by: str = ""
    collectives: tuple[Collective, ...] = ()
    gpu: str = ""


class Ending(msgspec.Struct, frozen=True):
    """The exception that ended a rank, by its own report: its type, and its stack, innermost first.

    `at_ns` is the time by the node's wall clock.
    """

    rank: int
    at_ns: int
    error: str
    stack: tuple[Frame, ...] = ()


class DeviceSeen(msgspec.Struct, frozen=True):
    """A device of the job. `link_errors` are those of the last minutes; `fault` is why the device
    is unhealthy, empty if it is well.
    """

    uuid: str
    busy_percent: int = -1
    power_mw: int = -1
    link_errors: int = -1
    worst_link: str = ""
    fault: str = ""


class PortSeen(msgspec.Struct, frozen=True):
    """An RDMA port of the node: whether it is up, and its errors during the diagnosis."""

    name: str
    is_up: bool
    errors: int = -1


class RasRank(msgspec.Struct, frozen=True):
    """A rank of a communicator, as NCCL's RAS subsystem reports it.

    `counts` are the collectives that it began, by operation. `missing`: RAS could not reach it.
    """

    rank: int
    counts: dict[str, int] = {}
    missing: bool = False


class RasCommunicator(msgspec.Struct, frozen=True):
    """A communicator of NCCL with its ranks."""

    name: str
    size: int
    ranks: tuple[RasRank, ...] = ()


class NodeSeen(msgspec.Struct, frozen=True):
    """The evidence of one node.

    `member` is the node's rank in the job. `error` is why the node gave no evidence. `ended` is how
    the node's part of the job ended, empty while it runs. `silent_s` is the time since the last
    sign of progress (-1: unknown). `endings` are exceptions that ended ranks; a rank that a signal
    ended has none.
    """

    node_id: NodeId
    member: int = 0
    error: str = ""
    ended: str = ""
    silent_s: int = -1
    processes: tuple[ProcessSeen, ...] = ()
    processes_all: int = 0
    devices: tuple[DeviceSeen, ...] = ()
    ports: tuple[PortSeen, ...] = ()
    communicators: tuple[RasCommunicator, ...] = ()
    notes: tuple[str, ...] = ()
    endings: tuple[Ending, ...] = ()


class Suspect(msgspec.Struct, frozen=True):
    """A rank that the others wait for, and why. `rank` -1: no single rank of the node."""

    rank: int
    node_id: NodeId
    why: str
    pid: int = 0


class Group(msgspec.Struct, frozen=True):
    """Ranks that were seen at the same place of the program. `ranks` is a text such as "0-6,8"."""

    ranks: str
    count: int
    place: str
    kind: str


class Verdict(msgspec.Struct, frozen=True):
    """The result of a diagnosis.

    `suspects` begins with the most probable. `cause` is one word: stopped, exited, input, lock,
    sleep, storage, compute, link, order or unknown. `is_certain`: the evidence also suffices when
    no user asked (docs/diagnose.md).
    """

    kind: str
    sentence: str
    cause: str = ""
    suspects: tuple[Suspect, ...] = ()
    groups: tuple[Group, ...] = ()
    notes: tuple[str, ...] = ()
    is_certain: bool = False


class DiagnosisAsk(msgspec.Struct, frozen=True):
    """The question of a gateway to an agent: collect the evidence of this attempt.

    `kept`: return the evidence of the last diagnosis instead. `dumps`: ask the flight recorders of
    the ranks for new dumps. Each process then reads and writes, so an automatic diagnosis does not.
    """

    job_id: JobId
    attempt: int
    kept: bool = False
    dumps: bool = True


class SilenceTold(msgspec.Struct, frozen=True):
    """An agent's report to a gateway: its part of this attempt shows no progress."""

    job_id: JobId
    attempt: int
    silent_s: int
