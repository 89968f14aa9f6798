"""The agent's side: starts supervisors through the zygote, watches them, finds them again after a
restart, and tells what happened.

Each (job, attempt) is started at most once: a durable marker before anything is asked
(`records.place_marker`). Events come from datagrams; a supervisor that cannot send that of an end
dies of it, which is seen too (pidfd), and a lost start is asked for. Tests:
tests/integration/test_supervision_agent.py.
"""

import asyncio
import binascii
import contextlib
import fcntl
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from libs.common.errors import Refused
from services.node_agent.machine import cgroups, processes
from services.node_agent.machine.cgroups import Limits
from services.node_agent.supervision import control_client, lost
from services.node_agent.supervision.zygote_link import ZygoteLink, ZygoteLost
from services.node_agent.supervisor import order, records
from services.node_agent.supervisor.records import ExitRecord

AGENT_SOCKET = "agent.sock"
ORDERS_MAX = 3
CONNECT_TRIES = 200
CONNECT_AGAIN_S = 0.01
STOP_TIMEOUT_S = 5.0
STATUS_TIMEOUT_S = 2.0
MISSED_EVENTS_EVERY_S = 1.0
MAX_DATAGRAMS_AT_ONCE = 64
DATAGRAM_BYTES = 4096
ARGV0_CHARS = 200
STDIN_CHUNK_BYTES = 256 * 1024
DEFAULT_OUTPUT_BYTES = 64 * 1024 * 1024
NO_GROUPS: Mapping[str, str] = {}

Key = tuple[str, int]
OnEvent = Callable[[Key, str, Mapping[str, Any]], None]


class AlreadyStarted(Refused):
    """This (job, attempt) was started before, by this agent or the one before it."""


@dataclass(frozen=True)
class LaunchRequest:
    """What to run.

    `env` is the full environment (MUSTER_* variables of the attempt are added); paths must be
    absolute. `note` stays in the marker, for the agent that comes after this one
    (`records.read_summary`).
    """

    job_id: str
    attempt: int
    argv: list[str]
    env: dict[str, str]
    workdir: str
    lease_path: str
    rank: int = 0
    stdin: bool = False
    output_limit_bytes: int = DEFAULT_OUTPUT_BYTES
    ignore_lease: bool = False
    limits: Limits = field(default_factory=Limits)
    account: list[int] = field(default_factory=list)
    note: Mapping[str, Any] = field(default_factory=dict)


class Told(msgspec.Struct, frozen=True):
    """A datagram (`supervisor.tell`)."""

    event: str
    job_id: str
    attempt: int


_datagrams = msgspec.json.Decoder(Told)


class Known(NamedTuple):
    job_id: str
    attempt: int
    living: bool
    exit: ExitRecord | None


@dataclass
class _Job:
    key: Key
    job_dir: str
    rank: int
    ignore_lease: bool = False
    order: bytes = b""
    orders: int = 0
    pidfd: int = -1
    started: bool = False
    exited: bool = False


class SupervisorClient:
    """`on_event(key, "started", identity)` and `on_event(key, "exited", exit_record)` come once per
    key and agent process, in that order, from the running loop; those of jobs found on disk come
    right after `start` has returned.

    `home`: see `cgroups.Home.dirs`.
    """

    def __init__(
        self,
        state_dir: str | os.PathLike[str],
        on_event: OnEvent,
        home: Mapping[str, str] = NO_GROUPS,
    ) -> None:
        self._home = dict(home)
        self.state_dir = os.path.abspath(state_dir)
        self._on_event = on_event
        self._jobs: dict[Key, _Job] = {}
        self._known: list[Known] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Adopts what is on disk, sweeps what was lost, and makes the zygote ready."""
        os.makedirs(f"{self.state_dir}/jobs", mode=0o700, exist_ok=True)
        self._loop = asyncio.get_running_loop()
        self._lock = _lock(self.state_dir)
        self._events = _bind(self.state_dir)
        self._loop.add_reader(self._events.fileno(), self._receive)
        self._zygote = ZygoteLink(f"{self.state_dir}/zygote.err", self._home)
        await self._zygote.start()
        self._jobs = {job.key: job for job in self._on_disk()}
        self._known = await asyncio.gather(*map(self._adopt, self._jobs.values()))
        self._missed = asyncio.create_task(self._notice_missed_events())
        for found in self._known:
            if found.exit is not None:
                self._loop.call_soon(
                    self._deliver, self._jobs[found.job_id, found.attempt], found.exit
                )

    async def close(self) -> None:
        """Lets go of everything; supervisors and jobs live on, for the next agent to find."""
        for task in (self._missed, *self._tasks):
            task.cancel()
        await asyncio.gather(self._missed, *self._tasks, return_exceptions=True)
        for job in self._jobs.values():
            self._unwatch(job)
        self._loop.remove_reader(self._events.fileno())
        self._events.close()
        await self._zygote.close()
        await asyncio.to_thread(cgroups.leave, self._home)
        os.close(self._lock)

    async def launch(self, request: LaunchRequest) -> None:
        """Returns once a supervisor was forked, or once it is certain that none will be: then
        "exited" follows, with the reason "not_started".

        Raises AlreadyStarted, Refused (a bad request) or OSError (no room on disk); then nothing
        was started.
        """
        key = (request.job_id, request.attempt)
        job = _Job(key, self.job_dir(key), request.rank, request.ignore_lease)
        job.order = self._frame(request, job.job_dir)
        summary = {
            "job_id": request.job_id,
            "attempt": request.attempt,
            "rank": request.rank,
            "argv0": request.argv[0][:ARGV0_CHARS],
        }
        summary["ignore_lease"], summary["note"] = request.ignore_lease, request.note
        try:
            await asyncio.to_thread(records.place_marker, job.job_dir, summary)
        except FileExistsError as error:
            raise AlreadyStarted(
                f"{request.job_id} attempt {request.attempt} was started before: {error}"
            ) from None
        self._jobs[key] = job
        await self._order(job)

    async def _order(self, job: _Job) -> None:
        """Also again, when the supervisor that took it died with the order unread."""
        job.orders += 1
        try:
            reply = await self._zygote.ask(job.order)
        except ZygoteLost as error:
            reply = {"error": str(error)}
        if "error" in reply:
            self._settle(job, f"no supervisor was started: {reply['error']}")
        else:
            self._watch(job, reply["supervisor_pid"], reply["start_ticks"])

    def known(self) -> list[Known]:
        """What `start` found on disk and nobody has forgotten."""
        return list(self._known)

    async def stop(
        self, key: Key, signal_number: int = int(signal.SIGTERM), grace_s: float = 10.0
    ) -> None:
        """Returns once the supervisor has taken the request; the end is an event.

        Harmless for a job that has ended.
        """
        await self._ask(
            self._job(key),
            {"op": "stop", "signal": int(signal_number), "grace_s": grace_s},
            STOP_TIMEOUT_S,
        )

    async def send_signal(self, key: Key, signal_number: int) -> None:
        await self._ask(
            self._job(key), {"op": "signal", "signal": int(signal_number)}, STOP_TIMEOUT_S
        )

    async def status(self, key: Key) -> dict[str, Any] | None:
        """None for a job that has ended."""
        return await self._ask(self._job(key), {"op": "status"}, STATUS_TIMEOUT_S)

    async def kill(self, key: Key) -> None:
        """Everything of the job, now.

        A supervisor that does not answer is killed itself, which ends the job too.
        """
        job = self._job(key)
        reply = await self._ask(
            job, {"op": "stop", "signal": int(signal.SIGKILL), "grace_s": 0}, STOP_TIMEOUT_S
        )
        if (
            reply is None and records.read_exit(job.job_dir) is None
        ):  # after a recorded end it may serve another by now
            _kill_supervisor(job)

    def end_leased(self) -> None:
        """SIGKILL to every supervisor that is left and heeds the lease, without asking it or the
        disk: its job dies with it, and the rest is swept.
        """
        for job in self._jobs.values():
            if not job.ignore_lease:
                _kill_supervisor(job)

    async def write_stdin(
        self, key: Key, offset: int, data: bytes, eof: bool = False
    ) -> tuple[int, bool]:
        """Waits until the supervisor has taken it all; the next offset wanted, and whether the
        input is over.

        Bytes sent before are passed over. Less than was sent when the job has ended or closed its
        input. Raises Refused for a gap.
        """
        job = self._job(key)
        taken, closed = offset, False
        for begin in range(0, max(len(data), 1), STDIN_CHUNK_BYTES):
            chunk = data[begin : begin + STDIN_CHUNK_BYTES]
            text = binascii.b2a_base64(chunk, newline=False).decode()
            last = begin + STDIN_CHUNK_BYTES >= len(data)
            reply = await self._ask(
                job,
                {"op": "stdin", "offset": offset + begin, "data": text, "eof": eof and last},
                None,
            )
            if reply is None:
                break
            taken, closed = reply["next"], reply["closed"]
            if closed:
                break
        return taken, closed

    def forget(self, key: Key) -> None:
        """Keeps the output and the exit record, and that the attempt was started.

        Raises Refused while it may still run.
        """
        job = self._job(key)
        if not job.exited:
            raise Refused(f"{key[0]} attempt {key[1]} has not ended: stop it first")
        os.rename(f"{job.job_dir}/{records.MARKER}", f"{job.job_dir}/{records.DONE}")
        del self._jobs[key]
        self._known = [found for found in self._known if (found.job_id, found.attempt) != key]

    def job_dir(self, key: Key) -> str:
        """Where the output of an attempt is (`output.read`)."""
        return f"{self.state_dir}/jobs/{key[0]}.{key[1]}"

    def _job(self, key: Key) -> _Job:
        try:
            return self._jobs[key]
        except KeyError:
            raise Refused(f"no job {key[0]} attempt {key[1]} on this node") from None

    def _frame(self, request: LaunchRequest, job_dir: str) -> bytes:
        marks = {
            "MUSTER_JOB_ID": request.job_id,
            "MUSTER_ATTEMPT": str(request.attempt),
            "MUSTER_RANK": str(request.rank),
        }
        paths = {"job_dir": job_dir, "agent_socket": f"{self.state_dir}/{AGENT_SOCKET}"}
        message = {
            **vars(request),
            "env": {**request.env, **marks, lost.JOB_DIR_VARIABLE: job_dir},
            **paths,
        }
        try:
            return order.frame_of(order.checked(message))
        except ValueError as error:
            raise Refused(
                f"{request.job_id} attempt {request.attempt} cannot be started: {error}"
            ) from None

    async def _ask(
        self, job: _Job, request: dict[str, Any], timeout_s: float | None
    ) -> dict[str, Any] | None:
        """A supervisor listens a moment after it was forked, and no more once it has ended."""
        for _ in range(CONNECT_TRIES):
            if job.exited:
                return None
            try:
                return await control_client.ask(job.job_dir, request, timeout_s)
            except control_client.NotListening:
                await asyncio.sleep(CONNECT_AGAIN_S)
        return None

    # What is on disk.

    def _on_disk(self) -> list[_Job]:
        """Every directory with a marker.

        A directory without one was never started, or was forgotten.
        """
        found = []
        for name in sorted(os.listdir(f"{self.state_dir}/jobs")):
            job_id, _, attempt = name.rpartition(".")
            job_dir = f"{self.state_dir}/jobs/{name}"
            if job_id and attempt.isdigit() and os.path.exists(f"{job_dir}/{records.MARKER}"):
                found.append(
                    _Job(
                        (job_id, int(attempt)),
                        job_dir,
                        records.read_rank(job_dir),
                        records.read_ignore_lease(job_dir),
                    )
                )
        return found

    async def _adopt(self, job: _Job) -> Known:
        why = "the agent was restarted between the order and the start; nothing was executed"
        identity, record = await asyncio.to_thread(
            lost.settle, job.job_dir, *job.key, job.rank, why
        )
        if identity is not None:
            self._watch(job, identity["pid"], identity["start_ticks"])
        return Known(*job.key, identity is not None, record)

    # What happens.

    def _watch(self, job: _Job, pid: int, start_ticks: int) -> None:
        """The supervisor's death wakes the loop; one that is dead already is seen at once."""
        with contextlib.suppress(ProcessLookupError):
            job.pidfd = os.pidfd_open(pid)
        if job.pidfd >= 0 and processes.is_living(pid, start_ticks):
            self._loop.add_reader(job.pidfd, self._supervisor_gone, job)
        else:
            self._loop.call_soon(self._supervisor_gone, job)

    def _unwatch(self, job: _Job) -> None:
        if job.pidfd >= 0:
            self._loop.remove_reader(job.pidfd)
            os.close(job.pidfd)
            job.pidfd = -1

    def _supervisor_gone(self, job: _Job) -> None:
        self._unwatch(job)
        record = records.read_exit(job.job_dir)
        if record is not None:
            self._deliver(job, record)
        elif (
            not job.exited
            and job.order
            and job.orders < ORDERS_MAX
            and records.read_identity(job.job_dir) is None
        ):
            self._spawn(self._order(job))
        elif not job.exited:
            self._settle(
                job, "its supervisor died before it could start the command; nothing was executed"
            )

    def _settle(self, job: _Job, why: str) -> None:
        """In a thread, because what is left of the job may have to be killed first."""
        self._spawn(self._settled(job, why))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _settled(self, job: _Job, why: str) -> None:
        identity, record = await asyncio.to_thread(
            lost.settle, job.job_dir, *job.key, job.rank, why
        )
        if identity is not None:
            self._watch(job, identity["pid"], identity["start_ticks"])
        elif record is not None:
            self._deliver(job, record)

    def _receive(self) -> None:
        """Datagrams are hints: what they say is read from the job's own files."""
        for _ in range(MAX_DATAGRAMS_AT_ONCE):
            try:
                message = _datagrams.decode(self._events.recv(DATAGRAM_BYTES))
            except BlockingIOError:
                return
            except (ValueError, RecursionError):
                continue
            job = self._jobs.get((message.job_id, message.attempt))
            if job is not None:
                self._told(job, message.event)

    def _told(self, job: _Job, event: str) -> None:
        if event == "started":
            self._begin(job)
        elif (record := records.read_exit(job.job_dir)) is not None:
            self._deliver(job, record)

    def _begin(self, job: _Job) -> None:
        identity = None if job.started else records.read_identity(job.job_dir)
        if identity is not None:
            job.started, job.order = True, b""
            self._on_event(job.key, "started", identity)

    def _deliver(self, job: _Job, record: ExitRecord) -> None:
        if job.exited:
            return
        if record["executed"]:
            self._begin(job)
        job.exited, job.order = True, b""
        self._unwatch(job)
        self._on_event(job.key, "exited", record)

    async def _notice_missed_events(self) -> None:
        """A lost "started" is found by asking; a lost "exited" by the supervisor's death."""
        while True:
            for job in [job for job in self._jobs.values() if job.pidfd >= 0 and not job.started]:
                reply = await self._ask(job, {"op": "status"}, STATUS_TIMEOUT_S)
                if reply is not None and reply["executed"]:
                    self._begin(job)
            await asyncio.sleep(MISSED_EVENTS_EVERY_S)


def _kill_supervisor(job: _Job) -> None:
    if not job.exited and job.pidfd >= 0:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(job.pidfd, signal.SIGKILL)


def _lock(state_dir: str) -> int:
    """One agent per state directory.

    Raises Refused when another one lives; its death, however it died, lets go.
    """
    descriptor = os.open(f"{state_dir}/agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise Refused(
            f"another agent uses {state_dir}: stop it, or give this one its own directory"
        ) from None
    return descriptor


def _bind(state_dir: str) -> socket.socket:
    """Through the folder's descriptor: a socket's address has room for 107 bytes only."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{state_dir}/{AGENT_SOCKET}")
    events = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    folder = os.open(state_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        events.bind(f"/proc/self/fd/{folder}/{AGENT_SOCKET}")
    finally:
        os.close(folder)
    return events
