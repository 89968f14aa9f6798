"""What the agent needs of its surroundings, as small protocols, so that the simulation runs the
very same agent.

`JobSupervisors` has the twins `job_directories.JobDirectories` (real processes) and the
simulation's; `Memory` keeps one number and one name over restarts (`incarnation.IncarnationFile`).
Nothing here is pure; nothing here decides.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from libs.common.model import AttemptRef, GpuId
from services.node_agent.core.observations import Adopted, Observation, Probe
from services.node_agent.directories.accounts import ALL_OTHERS, SELF, Account
from services.node_agent.directories.retention import Keep, Pruned
from services.node_agent.directories.tenant_numbers import TenantNumbers
from services.node_agent.drivers.sysfs import Numa
from services.node_agent.machine.cgroups import Limits
from services.node_agent.sharing.ways import Used
from services.node_agent.supervision.launch_request import AlreadyStarted as AlreadyStarted

# Called on the event loop with ProcessStarted or ProcessExited, each at most once per attempt and
# process, in that order.
OnEvent = Callable[[Observation], None]


# (address, port, path, seconds to answer) of a replica of this node: empty when it is ready, else
# what is wrong. 0 s: the node's setting.
Prober = Callable[[str, int, str, float], Awaitable[str]]


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One member to start; of a `container` what is started is its runner, as the agent's own user.

    `env` is the whole environment; `gpus`, their `slices`, `seq`, the limits with their grace,
    `probe`, `parts` (`shares.Share`), `used`, `container` and `tenant` are kept beside the marker,
    for the next agent.
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
    time_limit_s: int = 0
    grace_s: int = 0
    probe: Probe | None = None
    slices: dict[GpuId, int] = {}
    used: Used = Used()
    container: bool = False
    hang_timeout_s: int = 0
    parts: dict[GpuId, int] = {}
    tenant: str = ""


class Piece(msgspec.Struct, frozen=True):
    """Output from `offset` on; `end`: no byte will ever follow."""

    offset: int
    data: bytes
    end: bool


class Taken(NamedTuple):
    """The next byte of input wanted; `closed`: none is, for the end has been taken or the job reads
    no more.
    """

    next_offset: int
    closed: bool


class JobSupervisors(Protocol):
    """Jobs that outlive the agent.

    Each attempt is launched at most once ever; each ends by its lease, agent alive or not.
    """

    async def start(self, on_event: OnEvent) -> Sequence[Adopted]:
        """Take the state directory (raises Refused when another agent has it) and find what is
        there.

        Events of what was found come after this has returned.
        """
        ...

    async def close(self) -> None:
        """Let go; jobs live on."""
        ...

    async def unpack(
        self, ref: AttemptRef, sha256: str, pieces: AsyncIterator[bytes], wanted: Callable[[], bool]
    ) -> str:
        """What the attempt brings along, verified, as a directory of its own; gives its path.

        Raises AlreadyStarted, or Refused, also when it is not `wanted` any more; then nothing of
        it is left.
        """
        ...

    async def discard(self, ref: AttemptRef) -> None:
        """What it brought along, when it is not launched after all."""
        ...

    async def launch(self, launch: Launch) -> None:
        """Returns once an event is certain to follow.

        Raises AlreadyStarted, or Refused when nothing was started.
        """
        ...

    async def stop(self, ref: AttemptRef, signal: int, grace_ms: int) -> None:
        """The signal now, KILL after the grace. Harmless for what has ended."""
        ...

    async def kill(self, ref: AttemptRef) -> None:
        """Everything of the attempt, now. Harmless for what has ended."""
        ...

    def checkpointed_ns(self, ref: AttemptRef) -> int:
        """When the attempt last said that its work is saved, by this machine's wall clock; 0 for
        never.
        """
        ...

    def output_bytes(self, ref: AttemptRef) -> int:
        """How much it has written so far, of what is kept of it."""
        ...

    def processes(self, ref: AttemptRef) -> list[int]:
        """Everything of an attempt that lives."""
        ...

    async def leftovers(self, ref: AttemptRef) -> Sequence[str]:
        """What of an ended attempt's processes is still alive, in words."""
        ...

    async def write_stdin(self, ref: AttemptRef, offset: int, data: bytes, eof: bool) -> Taken:
        """How far it was taken. Raises Refused for a gap or an unknown attempt."""
        ...

    async def read_output(
        self, ref: AttemptRef, stream: str, offset: int, max_bytes: int
    ) -> Piece | None:
        """None when there is no such attempt here.

        A negative offset counts from the end of what is stored.
        """
        ...

    def root_of(self, ref: AttemptRef) -> tuple[str, bool, Sequence[int]] | None:
        """See `job_files.RootOf`."""
        ...

    async def forget(self, ref: AttemptRef, copied: bool) -> None:
        """The attempt's facts are in the log: only its output is kept, and that it was started.

        Not `copied`: its output is nowhere else. Harmless when repeated.
        """
        ...

    async def uncopied(self) -> Sequence[tuple[AttemptRef, int]]:
        """Forgotten attempts whose output is nowhere else, with their ranks."""
        ...

    async def copied(self, ref: AttemptRef) -> None:
        """The end of its output is elsewhere too."""
        ...

    async def prune(self, keep: Keep | None = None, dry_run: bool = False) -> Pruned:
        """Remove the output of forgotten attempts beyond these bounds, or beyond this machine's
        own; never what is nowhere else.
        """
        ...

    def extend_lease(self, deadline_ns: int) -> None:
        """For all supervisors at once (boot clock); never back."""
        ...

    def replace_lease(self, deadline_ns: int) -> None:
        """The same, back too."""
        ...


class Memory(Protocol):
    """What the state directory keeps over restarts: its name, the incarnation, and small files."""

    async def directory(self) -> str:
        """The state directory's own name, by chance when it was made and the same ever after."""
        ...

    async def load(self) -> int:
        """0 when there was none."""
        ...

    async def store(self, incarnation: int) -> None:
        """Returns once it would survive a power cut."""
        ...

    async def kept(self, name: str) -> bytes:
        """What was kept under a name; empty when nothing was."""
        ...

    async def keep(self, name: str, data: bytes) -> None:
        """Returns once it would survive a power cut. Raises OSError."""
        ...


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine is.

    `environment` is what jobs inherit (PATH, HOME, LANG), never the agent's own variables; from
    `cpus_milli` on as NodeRegistered says it, but for `numas`: where processors and memory of the
    host lie (`sysfs.numas`); `users`: see `accounts`.
    """

    node_id: str
    address: str
    boot_id: str = ""
    version: str = ""
    heartbeat_ms: int = 1_000
    release_ms: int = 30_000
    driver_answer_ms: int = 8_000
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
    sockets: tuple[int, ...] = ()
    isolation: dict[str, str] = {}
    numas: Mapping[int, Numa] = {}
    users: dict[str, str] = msgspec.field(default_factory=lambda: {ALL_OTHERS: SELF})
    numbers: TenantNumbers = TenantNumbers()
