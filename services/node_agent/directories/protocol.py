"""The agent's surroundings as small protocols, so that the simulation runs the same agent.

`JobSupervisors` has the twins `job_directories.JobDirectories` (real processes) and the
simulation's. `Memory` keeps the incarnation, the directory's name and small files over restarts
(`incarnation.IncarnationFile`).
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from libs.common.model import AttemptRef, GpuId
from services.node_agent.core.actions import NOTICE_NS
from services.node_agent.core.observations import Adopted, Observation, Probe
from services.node_agent.core.used import Used
from services.node_agent.directories.accounts import ALL_OTHERS, SELF, Account
from services.node_agent.directories.retention import Keep, Pruned
from services.node_agent.directories.tenant_numbers import TenantNumbers
from services.node_agent.drivers.sysfs import Numa
from services.node_agent.machine.cgroups import Limits
from services.node_agent.supervision.launch_request import AlreadyStarted as AlreadyStarted

# Called on the event loop with ProcessStarted or ProcessExited, each at most once per attempt and
# process, in that order.
OnEvent = Callable[[Observation], None]

# The job touches this file when its work is saved; the variable names it.
CHECKPOINT: Final = "checkpoint"
CHECKPOINT_VARIABLE: Final = "MUSTER_CHECKPOINT_FILE"


# Probe a replica at (address, port, path) within so many seconds (0: the node's setting), with its
# key (empty: it has none; None: the key is unknown). Returns why it is not ready; empty if it is.
Prober = Callable[[str, int, str, float, str | None], Awaitable[str]]


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to start.

    For a `container` the supervisor starts its runner as the agent's own user; `image` is the
    digest of its image; `in_registry`: a registry has it. `mounts` are those of pulled models
    (`runner.own_mount`). `env` is the whole environment. `instances` are the numbers of its MIG
    instances by device. The marker notes the devices, limits, probe, shares and tenant for the next
    agent (`marker_notes.py`).
    """

    ref: AttemptRef
    rank: int
    argv: tuple[str, ...]
    env: dict[str, str]
    workdir: str
    stdin: bool
    output_limit_bytes: int
    ignore_lease: bool
    limits: Limits = Limits()
    account: Account | None = None
    gpus: tuple[GpuId, ...]
    seq: int
    incarnation: int = 0
    time_limit_s: int = 0
    grace_s: int = 0
    probe: Probe | None = None
    slices: dict[GpuId, int] = {}
    used: Used = Used()
    container: bool = False
    image: str = ""
    in_registry: bool = False
    hang_timeout_s: int = 0
    parts: dict[GpuId, int] = {}
    tenant: str = ""
    elements: Mapping[str, Any] = {}
    mounts: tuple[Mapping[str, Any], ...] = ()
    instances: dict[GpuId, int] = {}


class Piece(msgspec.Struct, frozen=True):
    """Output from `offset` on; `end`: no more will follow."""

    offset: int
    data: bytes
    end: bool


class Taken(NamedTuple):
    """The next byte of input wanted; `closed`: the input has ended, or the job reads no more."""

    next_offset: int
    closed: bool


class Watchdog(Protocol):
    """The second enforcer of leases (`watchdog/`)."""

    async def run(self) -> None:
        """Last as long as the agent watches over it. Raises what ended that."""
        ...

    def missing(self) -> str:
        """Return why there is none now; empty if one runs."""
        ...

    def armed_ms(self) -> int:
        """Return the time in which an armed hardware watchdog resets the machine if nothing tends
        it; 0 unless one is known to be armed.
        """
        ...

    def lacking(self) -> str:
        """Return what it lacks on this machine; empty if nothing."""
        ...

    def metrics(self, node: str) -> Sequence[str]:
        """Return its metrics, in Prometheus's text format."""
        ...


class JobSupervisors(Protocol):
    """Jobs that outlive the agent.

    Each attempt is launched at most once ever. Each ends with its lease, whether or not the agent
    lives.
    """

    @property
    def watchdog(self) -> Watchdog:
        """The second enforcer of these jobs' lease."""
        ...

    async def start(self, on_event: OnEvent) -> Sequence[Adopted]:
        """Lock the state directory and return the attempts on disk.

        Their events come after this has returned. Raises Refused if another agent has the
        directory.
        """
        ...

    async def close(self) -> None:
        """Let go of everything; jobs live on."""
        ...

    async def unpack(
        self, ref: AttemptRef, sha256: str, pieces: AsyncIterator[bytes], wanted: Callable[[], bool]
    ) -> str:
        """Unpack and verify the attempt's upload; return the directory.

        Raises AlreadyStarted, or Refused, also when the attempt is not `wanted` any more; then
        nothing of it is left.
        """
        ...

    async def discard(self, ref: AttemptRef) -> None:
        """Remove the upload of an attempt that was not launched."""
        ...

    async def launch(self, launch: Launch) -> None:
        """Launch an attempt; return once an event is certain to follow.

        Raises AlreadyStarted, or Refused if nothing was started.
        """
        ...

    async def stop(self, ref: AttemptRef, signal: int, grace_ms: int) -> None:
        """Send the signal now and KILL after the grace. Harmless for an ended attempt."""
        ...

    async def kill(self, ref: AttemptRef) -> None:
        """Kill all processes of the attempt now. Harmless for an ended attempt."""
        ...

    async def deny(self, ref: AttemptRef, denied: Sequence[Sequence[int]]) -> None:
        """Deny these devices, as [major, minor], to an attempt that runs, and allow all others.

        Harmless for an ended attempt. Raises Refused if its supervisor is older than this request,
        Unavailable if the supervisor does not answer or the kernel refuses.
        """
        ...

    def checkpointed_ns(self, ref: AttemptRef) -> int:
        """Return when the attempt last saved its work, on the wall clock; 0 for never."""
        ...

    def output_bytes(self, ref: AttemptRef) -> int:
        """Return how much output the attempt has written, as far as it is kept."""
        ...

    def directory_of(self, ref: AttemptRef) -> str:
        """Return the path of the attempt's directory."""
        ...

    def processes(self, ref: AttemptRef) -> list[int]:
        """Return the pids of all living processes of an attempt."""
        ...

    async def leftovers(self, ref: AttemptRef) -> Sequence[str]:
        """Return the living processes of an ended attempt, in words."""
        ...

    async def write_stdin(self, ref: AttemptRef, offset: int, data: bytes, eof: bool) -> Taken:
        """Pass input to the job; return how far it was taken. Raises Refused for a gap or an
        unknown attempt.
        """
        ...

    async def read_output(
        self, ref: AttemptRef, stream: str, offset: int, max_bytes: int
    ) -> Piece | None:
        """Return a piece of output; None if the attempt is unknown here.

        A negative offset counts from the end of what is stored.
        """
        ...

    def root_of(self, ref: AttemptRef) -> tuple[str, bool, Sequence[int]] | None:
        """Return the working directory; see `jobs.files.RootOf`."""
        ...

    async def forget(self, ref: AttemptRef, copied: bool) -> None:
        """Forget an attempt whose facts are in the log; keep its output and that it was started.

        Not `copied`: its output is only here. Harmless when repeated.
        """
        ...

    async def uncopied(self) -> Sequence[tuple[AttemptRef, int]]:
        """Return the forgotten attempts whose output is only here, with their ranks."""
        ...

    async def copied(self, ref: AttemptRef) -> None:
        """Note that the end of the output is stored elsewhere too."""
        ...

    async def prune(self, keep: Keep | None = None, dry_run: bool = False) -> Pruned:
        """Remove output of forgotten attempts beyond these bounds, or beyond this machine's own.

        Output that is only here stays. Raises Unavailable while the agent still reads the
        directories of earlier agents.
        """
        ...

    def extend_lease(self, deadline_ns: int, notice_ns: int = NOTICE_NS) -> None:
        """Extend the lease of all supervisors (boot clock); an earlier deadline changes nothing.

        They ask their jobs to end `notice_ns` before it.
        """
        ...

    def replace_lease(self, deadline_ns: int, notice_ns: int = NOTICE_NS) -> None:
        """Set the lease of all supervisors, also to an earlier deadline."""
        ...


class Memory(Protocol):
    """The small files that survive a restart: the directory's name, the incarnation, and others."""

    async def directory(self) -> str:
        """Return the name of the state directory: random, and never changed."""
        ...

    async def load(self) -> int:
        """Return the last incarnation; 0 if there was none."""
        ...

    async def store(self, incarnation: int) -> None:
        """Store the incarnation; return once it survives a power cut."""
        ...

    async def kept(self, name: str) -> bytes:
        """Return the content of a kept file; empty if there is none."""
        ...

    async def keep(self, name: str, data: bytes) -> None:
        """Keep a file; return once it survives a power cut. Raises OSError."""
        ...


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The description of this machine.

    `environment` is what jobs inherit (PATH, HOME, LANG), never the agent's own variables. The
    fields from `cpus_milli` to `isolation` go into NodeRegistered. `numas` is where processors and
    memory lie (`sysfs.numas`). `users`: see `accounts`. `fence_ms`: see NodeRegistered.
    """

    node_id: str
    address: str
    boot_id: str = ""
    version: str = ""
    heartbeat_ms: int = 1_000
    release_ms: int = 30_000
    preflight: bool = True
    pause_c: int = 85
    burn_in: str = ""
    burn_in_ms: int = 120_000
    scrub: str = ""
    scrub_ms: int = 60_000
    environment: dict[str, str] = {}
    cpus_milli: int = 0
    memory_bytes: int = 0
    labels: dict[str, str] = {}
    rack: str = ""
    spine: str = ""
    transport: str = ""
    transport_why: str = ""
    link_address: str = ""
    sockets: tuple[int, ...] = ()
    isolation: dict[str, str] = {}
    numas: Mapping[int, Numa] = {}
    users: dict[str, str] = msgspec.field(default_factory=lambda: {ALL_OTHERS: SELF})
    numbers: TenantNumbers = TenantNumbers()
    keeps: bool = False
    fence_ms: int = 0
    diagnose_after_s: int = 0
    diagnose_hook: bool = False
