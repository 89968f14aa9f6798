"""What the agent's core is told: one small frozen struct per kind of event, applied by
`state.apply`.

Pure. Nothing here says what follows from it; that is `decide.py`.
"""

import msgspec

from libs.common.devices.error_catalogue import Seen
from libs.common.messages import ControlOrder, Desired, Lease, Orders
from libs.common.model import AttemptRef, GpuId
from libs.common.reasons import EXITED
from services.node_agent.core.devices import Trouble
from services.node_agent.core.shares import Use
from services.node_agent.sharing.ways import Used


class Exit(msgspec.Struct, frozen=True):
    """How a member's processes ended, from its exit record.

    `exit_code` None with `signal` 0: ended unseen.

    `executed` is False when the command never began; `clean` when none of its processes is left.
    """

    executed: bool
    exit_code: int | None
    signal: int = 0
    reason: str = EXITED
    detail: str = ""
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    dropped_bytes: int = 0
    clean: bool = True
    run_ms: int = 0


class Mark(msgspec.Struct, frozen=True):
    """How far an attempt's facts go (`state.STARTED_LEVEL` ...), for the acknowledgement to say the
    same.
    """

    key: str
    level: int


class Probe(msgspec.Struct, frozen=True):
    """The readiness probe of a replica, its startup timeout, and the time between TERM and KILL
    when it fails.

    A ready one is probed every `interval_s`. It has `answer_s` to answer (0: the node's own
    setting), and is unready after `failures` in a row.
    """

    port: int
    path: str
    timeout_s: int
    grace_s: int
    interval_s: int = 5
    answer_s: int = 0
    failures: int = 3


class OrdersCame(msgspec.Struct, frozen=True):
    orders: Orders


class LeaseCame(msgspec.Struct, frozen=True):
    """The answer to a heartbeat that this agent sent at `sent_boot_ns` as `incarnation`."""

    lease: Lease
    incarnation: int
    sent_boot_ns: int


class DesiredCame(msgspec.Struct, frozen=True):
    desired: Desired


class JobLaunched(msgspec.Struct, frozen=True):
    """A supervisor was forked (or it is certain that an exit will be told)."""

    key: str


class LaunchFailed(msgspec.Struct, frozen=True):
    """Nothing was started, and no marker is on disk."""

    key: str
    reason: str


class ProcessStarted(msgspec.Struct, frozen=True):
    """The command was executed, at `began_ns` of this machine's boot clock; `isolation`: see
    `sharing.ways.Used`.
    """

    key: str
    pid: int
    began_ns: int = 0
    isolation: str = ""


class ProcessExited(msgspec.Struct, frozen=True):
    key: str
    exit: Exit


class ReleaseChecked(msgspec.Struct, frozen=True):
    """What was found.

    When it is not `clean`, `unclean` names the devices that cannot be used again, and why.
    """

    key: str
    checks: dict[str, str]
    clean: bool
    unclean: dict[GpuId, str] = {}


class Checkpointed(msgspec.Struct, frozen=True):
    """A job says that its work is saved, at `at_ns` of this machine's wall clock."""

    key: str
    at_ns: int


class Probed(msgspec.Struct, frozen=True):
    """A replica was asked; `wrong` is empty when it answered as it should."""

    key: str
    wrong: str


class ReplicaAnswered(msgspec.Struct, frozen=True):
    """A gateway says that this replica answered requests a moment ago."""

    key: str


class ShareLost(msgspec.Struct, frozen=True):
    """What keeps an attempt apart from others on its devices has died: it cannot go on."""

    key: str
    detail: str


class JobLooked(msgspec.Struct, frozen=True):
    """A job that may hang was looked at; `busy`: a device of it works.

    `signs` are of its progress: they are the same, or it goes on.
    """

    key: str
    busy: bool
    signs: tuple[int, ...]


class ShareLooked(msgspec.Struct, frozen=True):
    """What a job with a part of a device uses of its memory; devices that do not tell are not
    there.
    """

    key: str
    used: dict[GpuId, Use]


class EvidenceSaved(msgspec.Struct, frozen=True):
    """Of a job that hangs; `where`: what is said of it."""

    key: str
    where: str


class DeviceErred(msgspec.Struct, frozen=True):
    """An error of a device, reported by `source`; `key` is the attempt whose process did it, where
    that is known.

    `slices` are the memory slices of the MIG instance that the driver named; 0: that instance is
    gone; None: the driver named none, or one that is not known.
    """

    uuid: GpuId
    error: Seen
    source: str
    key: str = ""
    slices: int | None = None


class DeviceAils(msgspec.Struct, frozen=True):
    """Something is wrong with a device for as long as it lasts; None: not any more, by these
    `checks`.
    """

    uuid: GpuId
    reason: str
    trouble: Trouble | None
    checks: dict[str, str] = {}


class DeviceReset(msgspec.Struct, frozen=True):
    """A reset came to its end; `problem` is empty when the device was found well afterwards, and
    `checks` says by what.

    `refused` (lacking, denied or failed) of one that its driver did not begin. `controls` were put
    back, each with what became of it.
    """

    uuid: GpuId
    problem: str
    checks: dict[str, str] = {}
    refused: str = ""
    controls: tuple[ControlOrder, ...] = ()


class DeviceControlled(msgspec.Struct, frozen=True):
    """The order with what became of it."""

    order: ControlOrder


class DevicesFound(msgspec.Struct, frozen=True):
    """The node was searched for devices again.

    `modes`: see `controls.Controls`; `changed`: they are not those that it registered.
    """

    modes: dict[tuple[GpuId, str], str]
    changed: bool


class FactsStored(msgspec.Struct, frozen=True):
    """The log acknowledged a commit of ours."""

    seq: int
    marks: tuple[Mark, ...]


# Of one attempt, by its key.
OfAttempt = (
    JobLaunched
    | LaunchFailed
    | ProcessStarted
    | ProcessExited
    | ReleaseChecked
    | Probed
    | ReplicaAnswered
    | Checkpointed
    | JobLooked
    | ShareLooked
)
OfDevice = DeviceErred | DeviceAils | DeviceReset | DeviceControlled | DevicesFound

Observation = (
    OrdersCame
    | LeaseCame
    | DesiredCame
    | OfAttempt
    | ShareLost
    | EvidenceSaved
    | OfDevice
    | FactsStored
)


class Adopted(msgspec.Struct, frozen=True):
    """An attempt that was found on disk when the agent began: it has a marker, and its last fact
    may not be recorded.
    """

    ref: AttemptRef
    rank: int = 0
    gpus: tuple[GpuId, ...] = ()
    seq: int = 0
    time_limit_s: int = 0
    grace_s: int = 0
    probe: Probe | None = None
    ignore_lease: bool = False
    slices: dict[GpuId, int] = {}
    used: Used = Used()
    hang_timeout_s: int = 0
    parts: dict[GpuId, int] = {}
