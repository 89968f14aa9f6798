"""Runs real jobs for the agent: supervisors, the lease file, and one directory per attempt.

The directory is `jobs/<job>.<attempt>`. Its marker also notes what the next agent must know
(`marker_notes.py`). Directories of ended attempts stay for their output (`kept_directories.py`).
Twin: the simulation's supervisors.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from libs.common.errors import Refused
from libs.common.model import AttemptRef, JobId
from libs.common.safety.folder_walk import remove_tree
from libs.common.transport.uploads import Bounds
from services.node_agent.core.observations import (
    Adopted,
    GuardChanged,
    ProcessExited,
    ProcessStarted,
)
from services.node_agent.core.state import key_of
from services.node_agent.diagnosis.launch_hook import with_files
from services.node_agent.directories.batches import elements_seen
from services.node_agent.directories.job_ownership import (
    OWN,
    device_seconds,
    give,
    is_passable,
    unnoted,
)
from services.node_agent.directories.kept_directories import KeptDirectories, is_pruned
from services.node_agent.directories.marker_notes import (
    account_ids,
    adopted_from,
    already_started,
    exit_of,
    image_from,
    note_of,
    used_from,
)
from services.node_agent.directories.protocol import (
    CHECKPOINT,
    AlreadyStarted,
    Launch,
    OnEvent,
    Piece,
    Taken,
)
from services.node_agent.directories.retention import Keep, Pruned
from services.node_agent.directories.stops import Stops
from services.node_agent.directories.unpacking import FILES, Unpacking
from services.node_agent.machine import processes
from services.node_agent.machine.ports import is_free
from services.node_agent.runtimes.exec_inside import request_of
from services.node_agent.runtimes.own_folders import SAVED, SCRATCH
from services.node_agent.runtimes.runner import ENTRY, MOUNTS
from services.node_agent.supervision import lost, output
from services.node_agent.supervision.container_processes import in_container
from services.node_agent.supervision.control_client import Exec, begin_exec
from services.node_agent.supervision.denial import deny
from services.node_agent.supervision.launch_request import LaunchRequest
from services.node_agent.supervision.supervised_job import Key
from services.node_agent.supervision.supervisor_client import (
    NO_GROUPS,
    SupervisorClient,
)
from services.node_agent.supervisor import records
from services.node_agent.supervisor.lease import NOTICE_NS, Lease, boottime_ns
from services.node_agent.watchdog.lease_watchdog import NO_FENCE, Fence, LeaseWatchdog

LEASE: Final = "lease"
# Supervisors end their jobs 0.5 s before the lease ends. This long before the end the agent kills
# supervisors that are stopped or stuck.
OVERRULE_NS: Final = 250_000_000
KEEP_ALL: Final = Keep()


class JobDirectories:
    """The jobs of one state directory; implements `directories.protocol.JobSupervisors`.

    `state_dir` belongs to this agent alone. `keep` bounds the directories of ended attempts.
    `home`: see `cgroups.Home.dirs`.
    """

    def __init__(
        self,
        state_dir: Path,
        keep: Keep = KEEP_ALL,
        bounds: Bounds | None = None,
        home: Mapping[str, str] = NO_GROUPS,
        fence: Fence = NO_FENCE,
    ) -> None:
        state_dir.mkdir(parents=True, exist_ok=True)
        self.unpacking = Unpacking(state_dir.resolve(), bounds or Bounds())
        self.jobs_dir = state_dir.resolve() / "jobs"
        self.lease_path = str(state_dir.resolve() / LEASE)
        self.supervisors = SupervisorClient(state_dir, self._event_came, home)
        self.stops = Stops(self.supervisors)
        self.on_event: OnEvent = lambda seen: None
        self.watchdog = LeaseWatchdog(self.lease_path, home, fence)
        self.keep = keep
        self.kept = KeptDirectories(self.jobs_dir)
        self.guard: asyncio.TimerHandle | None = None
        # How attempts that are about to start share their devices, the digests of their images, and
        # whether a registry has these. Their markers record it later.
        self.ways: dict[str, tuple[str, str, bool]] = {}

    async def start(self, on_event: OnEvent) -> Sequence[Adopted]:
        self.on_event = on_event
        await self.supervisors.start()
        self.lease = Lease(self.lease_path)
        await self.watchdog.start(lambda why, armed_ms: on_event(GuardChanged(why, armed_ms)))
        await asyncio.to_thread(_sweep, self.jobs_dir)
        self.loading = asyncio.create_task(self.kept.load())
        return [
            adopted_from(self.directory_of(ref), ref)
            for ref in (
                AttemptRef(JobId(known.job_id), known.attempt) for known in self.supervisors.known()
            )
        ]

    async def close(self) -> None:
        if self.guard is not None:
            self.guard.cancel()
        self.unpacking.close()
        await self.kept.close(self.loading)
        await self.watchdog.close(self.supervisors.serve())
        await self.supervisors.close()
        self.lease.close()

    async def unpack(
        self, ref: AttemptRef, sha256: str, pieces: AsyncIterator[bytes], wanted: Callable[[], bool]
    ) -> str:
        job_dir = self.directory_of(ref)
        if _is_marked(job_dir):
            raise already_started(job_dir, ref)
        try:
            return await self.unpacking.unpack(Path(job_dir), sha256, pieces, wanted)
        except Refused as error:
            await asyncio.to_thread(_remove_unmarked, job_dir)
            raise Refused(f"{key_of(ref)} cannot be started: {error}") from error

    async def discard(self, ref: AttemptRef) -> None:
        await asyncio.to_thread(_remove_unmarked, self.directory_of(ref))

    async def launch(self, launch: Launch) -> None:
        if launch.probe is not None and not is_free(launch.probe.port):
            raise Refused(f"port {launch.probe.port} is in use on this node by another process")
        if not launch.ignore_lease:
            await self.watchdog.require(key_of(launch.ref))
        launch = self._with_home(launch)
        request = LaunchRequest(
            job_id=launch.ref.job_id,
            attempt=launch.ref.attempt,
            argv=list(launch.argv),
            env=with_files(launch.env, self.directory_of(launch.ref), launch.account is not None),
            workdir="/" if launch.container else launch.workdir,
            lease_path=self.lease_path,
            rank=launch.rank,
            stdin=launch.stdin,
            output_limit_bytes=launch.output_limit_bytes,
            ignore_lease=launch.ignore_lease,
            limits=launch.limits,
            account=[] if launch.container else account_ids(launch),
            note=note_of(launch),
            elements=launch.elements,
        )
        job_dir = self.directory_of(launch.ref)
        if _is_marked(job_dir):
            raise already_started(job_dir, launch.ref)
        try:
            if launch.account is not None:
                await asyncio.to_thread(give, self.jobs_dir, job_dir, launch.account)
            self.ways[key_of(launch.ref)] = launch.used.way, launch.image, launch.in_registry
            await self.supervisors.launch(request)
        except AlreadyStarted:
            self.ways.pop(key_of(launch.ref), None)
            raise
        except (Refused, OSError) as error:
            self.ways.pop(key_of(launch.ref), None)
            await asyncio.to_thread(_remove_unmarked, job_dir)
            raise Refused(f"{key_of(launch.ref)} cannot be started: {error}") from error

    def _with_home(self, launch: Launch) -> Launch:
        """Make the attempt's own folder the home of a user without one.

        The home is `/` if other users cannot reach that folder.
        """
        if launch.account is None or launch.account.home or launch.container:
            return launch
        home = (
            f"{self.directory_of(launch.ref)}/{OWN}" if is_passable(self.jobs_dir.parent) else "/"
        )
        return msgspec.structs.replace(
            launch, env={**launch.env, "HOME": home}, workdir=launch.workdir or home
        )

    async def stop(self, ref: AttemptRef, signal: int, grace_ms: int) -> None:
        await self.stops.stop(_key(ref), signal, grace_ms)

    async def kill(self, ref: AttemptRef) -> None:
        with contextlib.suppress(Refused):
            await self.supervisors.kill(_key(ref))

    async def deny(self, ref: AttemptRef, denied: Sequence[Sequence[int]]) -> None:
        await deny(self.directory_of(ref), denied)

    def checkpointed_ns(self, ref: AttemptRef) -> int:
        """Return when the job last saved its work, on the wall clock; 0 for never.

        The change time counts, because a job can set the file's other times. A link counts by its
        own change time: the agent never follows it.
        """
        job_dir, state_dir = self.directory_of(ref), self.jobs_dir.parent
        folders = (f"{state_dir}/{SCRATCH}/{key_of(ref)}/{SAVED}", f"{job_dir}/{OWN}")
        path = f"{next(filter(os.path.isdir, folders), job_dir)}/{CHECKPOINT}"
        try:
            return min(os.lstat(path).st_ctime_ns, time.time_ns())
        except OSError:
            return 0

    def output_bytes(self, ref: AttemptRef) -> int:
        return sum(
            output.written_bytes(self.directory_of(ref), stream) for stream in ("stdout", "stderr")
        )

    def device_s(self, ref: AttemptRef) -> float | None:
        """See `job_ownership.device_seconds`."""
        return device_seconds(self.directory_of(ref))

    async def leftovers(self, ref: AttemptRef) -> Sequence[str]:
        record = records.read_exit(self.directory_of(ref))
        if record is None or record["boot_id"] != processes.boot_id():
            return []
        left = [
            f"{process['pid']} {process['name']}"
            for process in record["leftovers"]
            if processes.is_living(process["pid"], process["start_ticks"])
        ]
        more = record["leftovers_more"]
        return [*left, f"{more} more that were not listed"] if more else left

    async def write_stdin(self, ref: AttemptRef, offset: int, data: bytes, eof: bool) -> Taken:
        return Taken(*await self.supervisors.write_stdin(_key(ref), offset, data, eof))

    async def begin_exec(
        self, ref: AttemptRef, request: dict[str, Any], descriptors: Sequence[int]
    ) -> Exec:
        """Start a process in the job's environment (`supervisor/execs.py`).

        In a container the process is a child of the container's first process
        (`runtimes/exec_inside.py`). Raises Refused.
        """
        job_dir = self.directory_of(ref)
        if records.read_summary(job_dir).get("note", {}).get("container"):
            entry = f"{self.jobs_dir.parent}/{MOUNTS}/{key_of(ref)}{ENTRY}"
            request, descriptors = request_of(entry, request, descriptors)
        return await begin_exec(job_dir, request, descriptors)

    def processes(self, ref: AttemptRef) -> list[int]:
        """Return the pids of an attempt that has not ended, and of its container. Blocks."""
        job_dir = self.directory_of(ref)
        identity = records.read_identity(job_dir)
        if identity is None:
            return []
        found = [*processes.descendants(identity["pid"]), *in_container(job_dir)]
        return found if lost.serves(job_dir, identity) else []

    async def read_output(
        self, ref: AttemptRef, stream: str, offset: int, max_bytes: int
    ) -> Piece | None:
        job_dir = self.directory_of(ref)
        try:
            if offset < 0:
                piece = Piece(*output.tail(job_dir, stream, min(-offset, max_bytes)))
            else:
                piece = Piece(*output.read(job_dir, stream, offset, max_bytes))
        except FileNotFoundError:
            return None
        return None if not piece.data and not piece.end and is_pruned(Path(job_dir)) else piece

    def root_of(self, ref: AttemptRef) -> tuple[str, bool, Sequence[int]] | None:
        """Return the working directory of an attempt; see `jobs.files.RootOf`.

        An uploaded working directory lies in the job's own directory, where the job could replace
        it by a link, so its last name may not be a link.
        """
        job_dir = self.directory_of(ref)
        note = records.read_summary(job_dir).get("note", {})
        workdir = note.get("workdir")
        return (
            (workdir, workdir == f"{job_dir}/{FILES}", note.get("account", unnoted()))
            if workdir
            else None
        )

    def tenant_of(self, ref: AttemptRef) -> str:
        """Return the tenant of an attempt; empty if nothing of it is here."""
        return records.read_tenant(self.directory_of(ref))

    async def forget(self, ref: AttemptRef, copied: bool) -> None:
        if not copied:
            self.kept.hold(key_of(ref))
        with contextlib.suppress(Refused):  # the attempt is forgotten already
            tenant = self.supervisors.forget(_key(ref))
            await self.kept.add(key_of(ref), tenant)

    async def uncopied(self) -> Sequence[tuple[AttemptRef, int]]:
        return await self.kept.uncopied()

    async def copied(self, ref: AttemptRef) -> None:
        self.kept.copied(key_of(ref))

    async def prune(self, keep: Keep | None = None, dry_run: bool = False) -> Pruned:
        return await self.kept.prune(keep or self.keep, dry_run)

    def extend_lease(self, deadline_ns: int, notice_ns: int = NOTICE_NS) -> None:
        self.lease.extend(deadline_ns, notice_ns)
        if self.guard is None:
            self._guard()

    def replace_lease(self, deadline_ns: int, notice_ns: int = NOTICE_NS) -> None:
        self.lease.replace(deadline_ns, notice_ns)
        if self.guard is not None:
            self.guard.cancel()
        self._guard()

    def _guard(self) -> None:
        """Kill the remaining supervisors shortly before the lease ends; until then wait again."""
        left_ns = self.lease.deadline_ns() - OVERRULE_NS - boottime_ns()
        self.guard = None
        if left_ns > 0:
            self.guard = asyncio.get_running_loop().call_later(left_ns / 1e9, self._guard)
        else:
            self.supervisors.end_leased()

    def _event_came(self, key: Key, event: str, record: Mapping[str, Any]) -> None:
        name = f"{key[0]}.{key[1]}"
        known = self.ways.pop(name, None)
        if event == "started":
            began_ns = processes.boot_ns_of(record["job_start_ticks"])
            job_dir = self.supervisors.job_dir(key)
            way, image, in_registry = known or (used_from(job_dir).way, *image_from(job_dir))
            seen = ProcessStarted(
                key=name,
                pid=record["job_pid"],
                began_ns=began_ns,
                isolation=way,
                image=image,
                in_registry=in_registry,
            )
            self.on_event(seen)
        else:
            elements = elements_seen(self.supervisors.job_dir(key), name)
            if elements is not None:
                self.on_event(elements)
            self.on_event(ProcessExited(name, exit_of(record)))

    def directory_of(self, ref: AttemptRef) -> str:
        return self.supervisors.job_dir(_key(ref))


def _key(ref: AttemptRef) -> Key:
    return (ref.job_id, ref.attempt)


def _remove_unmarked(job_dir: str) -> None:
    """Remove the directory of an attempt that was never started."""
    if not _is_marked(job_dir):
        remove_tree(job_dir)


def _is_marked(job_dir: str) -> bool:
    """Return whether the attempt was ever started."""
    return any(os.path.exists(f"{job_dir}/{name}") for name in (records.MARKER, records.DONE))


def _sweep(jobs_dir: Path) -> None:
    """Remove the directories of attempts that an earlier agent prepared and never started."""
    for name in os.listdir(jobs_dir):
        _remove_unmarked(str(jobs_dir / name))
