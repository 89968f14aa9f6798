"""The observations that reach the agent's core, one frozen struct each; `apply.apply` applies them.

Pure. An observation says what happened. `decide.py` says what follows.
"""

import msgspec

from libs.common.devices.error_catalogue import Seen
from libs.common.messages import ControlOrder, Desired, KeepOrder, Lease, Orders
from libs.common.model import AttemptRef, GpuId
from libs.common.reasons import EXITED
from services.node_agent.core import device_use
from services.node_agent.core.device_use import Reading
from services.node_agent.core.devices import Trouble
from services.node_agent.core.shares import Use
from services.node_agent.core.used import Used


class Exit(msgspec.Struct, frozen=True):
    """The end of a member's processes, from its exit record.

    `exit_code` None with `signal` 0: the supervisor did not see the end. `executed` is False if the
    command never started. `clean`: none of its processes is left.
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
    """The progress of an attempt's facts in one commit (`state.STARTED_LEVEL` ...).

    The acknowledgement brings it back.
    """

    key: str
    level: int


class Probe(msgspec.Struct, frozen=True):
    """The readiness probe of a replica.

    `timeout_s` is the startup timeout, `grace_s` the time between TERM and KILL when it fails. A
    ready replica is probed every `interval_s`. It has `answer_s` to answer (0: the node's own
    setting), and is unready after `failures` in a row. `keyed`: the probe carries the key of the
    attempt.
    """

    port: int
    path: str
    timeout_s: int
    grace_s: int
    interval_s: int = 5
    answer_s: int = 0
    failures: int = 3
    keyed: bool = False


class OrdersReceived(msgspec.Struct, frozen=True):
    """Orders of the scheduler."""

    orders: Orders


class LeaseReceived(msgspec.Struct, frozen=True):
    """The answer to a heartbeat that this agent sent at `sent_boot_ns` as `incarnation`."""

    lease: Lease
    incarnation: int
    sent_boot_ns: int


class DesiredReceived(msgspec.Struct, frozen=True):
    """The full desired state of this node."""

    desired: Desired


class JobLaunched(msgspec.Struct, frozen=True):
    """A supervisor was forked, or ProcessExited is certain to follow."""

    key: str


class LaunchFailed(msgspec.Struct, frozen=True):
    """Nothing was started, and no marker is on disk."""

    key: str
    reason: str


class ProcessStarted(msgspec.Struct, frozen=True):
    """The command was executed, at `began_ns` of the boot clock. `isolation`: see
    `core.used.Used`. `image` is the digest of its image; `in_registry`: a registry has it.
    """

    key: str
    pid: int
    began_ns: int = 0
    isolation: str = ""
    image: str = ""
    in_registry: bool = False


class ProcessExited(msgspec.Struct, frozen=True):
    """All processes of the attempt have ended, or their supervisor is gone."""

    key: str
    exit: Exit


class GuardChanged(msgspec.Struct, frozen=True):
    """The lease watchdog is missing, and why; empty: it runs.

    `armed_ms`: see WatchdogChanged.
    """

    missing: str = ""
    armed_ms: int = 0


class ReleaseChecked(msgspec.Struct, frozen=True):
    """The result of a release check.

    If it is not `clean`, `unclean` names the devices that cannot be used again, with the reason.
    """

    key: str
    checks: dict[str, str]
    clean: bool
    unclean: dict[GpuId, str] = {}


class Checkpointed(msgspec.Struct, frozen=True):
    """The job reported at `at_ns` (wall clock) that its work is saved."""

    key: str
    at_ns: int


class ElementsSeen(msgspec.Struct, frozen=True):
    """The journal of a batch: results in order from the place `first` on, and how many began."""

    key: str
    first: int
    results: tuple[int, ...]
    begun: int


class Probed(msgspec.Struct, frozen=True):
    """The result of a probe; `wrong` is empty if the replica is ready."""

    key: str
    wrong: str


class ReplicaAnswered(msgspec.Struct, frozen=True):
    """A gateway reports that this replica has just answered requests."""

    key: str


class StandbySeen(msgspec.Struct, frozen=True):
    """A replica reports that its standby serves, after `number` promotions."""

    key: str
    number: int
    took_ms: int = 0
    reason: str = ""


class ShareLost(msgspec.Struct, frozen=True):
    """The isolation of an attempt on a shared device is gone: it cannot go on."""

    key: str
    detail: str


class ProgressSampled(msgspec.Struct, frozen=True):
    """Signs of progress of a job that may hang; `busy`: one of its devices works.

    If the job makes progress, `signs` change.
    """

    key: str
    busy: bool
    signs: tuple[int, ...]


class ShareSampled(msgspec.Struct, frozen=True):
    """The memory that a job uses on its shared devices; silent devices are absent."""

    key: str
    used: dict[GpuId, Use]


class UseSampled(msgspec.Struct, frozen=True):
    """The readings of the devices on which attempts work; silent devices are absent.

    `kept` has the sums of adopted attempts that an earlier agent kept.
    """

    readings: dict[GpuId, Reading]
    kept: dict[str, device_use.Use] = {}


class EvidenceSaved(msgspec.Struct, frozen=True):
    """The evidence of a hang is saved; `where` says where."""

    key: str
    where: str


class DeviceErrorSeen(msgspec.Struct, frozen=True):
    """A device error that `source` reported; `key` is the attempt whose process made it, if known.

    `slices` are the memory slices of the MIG instance that the driver named. 0: the instance is
    gone. None: the driver named none, or an unknown one.
    """

    uuid: GpuId
    error: Seen
    source: str
    key: str = ""
    slices: int | None = None


class DeviceTroubleChanged(msgspec.Struct, frozen=True):
    """A lasting trouble of a device began, or ended (None) by these `checks`."""

    uuid: GpuId
    reason: str
    trouble: Trouble | None
    checks: dict[str, str] = {}


class DeviceReset(msgspec.Struct, frozen=True):
    """A reset ended; `problem` is empty if the device is well, and `checks` says how that was
    found.

    `refused` (lacking, denied or failed): the driver did not begin the reset. `controls` were
    restored, each with its outcome.
    """

    uuid: GpuId
    problem: str
    checks: dict[str, str] = {}
    refused: str = ""
    controls: tuple[ControlOrder, ...] = ()


class DeviceControlled(msgspec.Struct, frozen=True):
    """A control order was carried out; it contains the outcome."""

    order: ControlOrder


class DevicesListed(msgspec.Struct, frozen=True):
    """The node's devices were listed again.

    `modes`: see `controls.Controls`. `changed`: they differ from the registered ones.
    """

    modes: dict[tuple[GpuId, str], str]
    changed: bool


class KeepSeen(msgspec.Struct, frozen=True):
    """A report about an entry of resident data; the fields are those of KeptObserved.

    `differs`: it failed because this node has other files than the recorded ones.
    """

    model: str
    tier: str
    request: int
    number: int
    state: str
    size_bytes: int = 0
    content: str = ""
    files: dict[str, str] = {}
    restore_ms: int = 0
    detail: str = ""
    differs: bool = False


class KeepDone(msgspec.Struct, frozen=True):
    """The work on an entry of resident data has ended."""

    model: str
    tier: str


class KeepHeld(msgspec.Struct, frozen=True):
    """Resident data that earlier agents of this node left, as the orders that would remove it."""

    entries: tuple[KeepOrder, ...]


class FactsStored(msgspec.Struct, frozen=True):
    """The log acknowledged a commit of this agent."""

    seq: int
    marks: tuple[Mark, ...]


# Observations of one attempt, which its key names.
AttemptObservation = (
    JobLaunched
    | LaunchFailed
    | ProcessStarted
    | ProcessExited
    | ReleaseChecked
    | Probed
    | ReplicaAnswered
    | StandbySeen
    | Checkpointed
    | ElementsSeen
    | ProgressSampled
    | ShareSampled
)
DeviceObservation = (
    DeviceErrorSeen | DeviceTroubleChanged | DeviceReset | DeviceControlled | DevicesListed
)

Observation = (
    OrdersReceived
    | LeaseReceived
    | DesiredReceived
    | AttemptObservation
    | ShareLost
    | UseSampled
    | EvidenceSaved
    | DeviceObservation
    | KeepSeen
    | KeepDone
    | KeepHeld
    | GuardChanged
    | FactsStored
)


class Adopted(msgspec.Struct, frozen=True):
    """An attempt that was found on disk when the agent started: it has a marker, and its last fact
    may not be recorded.

    The sequence of its order does not count: a restore may have made another commit of it. Any
    desired state of this incarnation is later, and decides whether the attempt is wanted.
    """

    ref: AttemptRef
    rank: int = 0
    gpus: tuple[GpuId, ...] = ()
    time_limit_s: int = 0
    grace_s: int = 0
    probe: Probe | None = None
    ignore_lease: bool = False
    slices: dict[GpuId, int] = {}
    used: Used = Used()
    hang_timeout_s: int = 0
    parts: dict[GpuId, int] = {}
