"""The agent's side of the supervisors: start them through the zygote, watch them, find them after a
restart, and report what happened.

Each (job, attempt) is started at most once: `records.place_marker` writes a durable marker before
anything is ordered. Supervisors report events in datagrams. Each second the agent looks for starts
and ends that were not reported, and repeats what failed (`repeating.py`). Tests:
tests/integration/test_supervision_agent.py, test_supervision_lost_starts.py.
"""

import asyncio
import binascii
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from libs.common.errors import Refused, Unavailable
from services.node_agent.machine import cgroups
from services.node_agent.supervision import control_client, lost
from services.node_agent.supervision.agent_socket import AGENT_SOCKET, bind, lock, received
from services.node_agent.supervision.launch_request import AlreadyStarted, LaunchRequest, frame_of
from services.node_agent.supervision.repeating import Repeating, ends_of
from services.node_agent.supervision.supervised_job import (
    Key,
    Known,
    SupervisedJob,
    jobs_on_disk,
    kill_supervisor,
)
from services.node_agent.supervision.supervisor_processes import SupervisorProcesses
from services.node_agent.supervision.zygote_link import ZygoteLink, ZygoteLost
from services.node_agent.supervisor import records
from services.node_agent.supervisor.records import ExitRecord

ORDERS_MAX = 3
STOP_TIMEOUT_S = 5.0
STATUS_TIMEOUT_S = 2.0
MISSED_EVENTS_EVERY_S = 1.0
ARGV0_CHARS = 200
STDIN_CHUNK_BYTES = 256 * 1024
NO_GROUPS: Mapping[str, str] = {}

logger = logging.getLogger(__name__)

OnEvent = Callable[[Key, str, Mapping[str, Any]], None]


class SupervisorClient:
    """The supervisors of one state directory.

    `on_event(key, "started", identity)` and `on_event(key, "exited", exit_record)` are called on
    the event loop, once per key and agent process, in that order. For jobs found on disk they come
    right after `start` has returned. `home`: see `cgroups.Home.dirs`.
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
        self._jobs: dict[Key, SupervisedJob] = {}
        # By pid the job that a supervisor serves now: it serves one job after the other.
        self._serving: dict[int, SupervisedJob] = {}
        self._known: list[Known] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._repeating = Repeating()

    async def start(self) -> None:
        """Adopt the jobs on disk, clean up what lost its supervisor, and start the zygote."""
        os.makedirs(f"{self.state_dir}/jobs", mode=0o700, exist_ok=True)
        self._loop = asyncio.get_running_loop()
        self._lock = lock(self.state_dir)
        self._processes = SupervisorProcesses(self._process_gone)
        self._events = bind(self.state_dir)
        self._loop.add_reader(self._events.fileno(), self._receive)
        self._zygote = ZygoteLink(f"{self.state_dir}/zygote.err", self._home)
        await self._zygote.start()
        self._jobs = {job.key: job for job in jobs_on_disk(self.state_dir)}
        self._known = await asyncio.gather(*map(self._adopt, self._jobs.values()))
        self._missed = asyncio.create_task(self._notice_missed_events())
        for found in self._known:
            if found.exit is not None:
                self._loop.call_soon(
                    self._deliver, self._jobs[found.job_id, found.attempt], found.exit
                )

    async def close(self) -> None:
        """Let go of everything. Supervisors and jobs live on, for the next agent to find."""
        for task in (self._missed, *self._tasks):
            task.cancel()
        await asyncio.gather(self._missed, *self._tasks, return_exceptions=True)
        for job in self._jobs.values():
            self._unwatch(job)
        self._processes.close()
        self._loop.remove_reader(self._events.fileno())
        self._events.close()
        await self._zygote.close()
        await asyncio.to_thread(cgroups.leave, self._home)
        os.close(self._lock)

    async def launch(self, request: LaunchRequest) -> None:
        """Start an attempt; return once a supervisor was forked, or once it is certain that none
        will be.

        In the second case "exited" follows with the reason "not_started". Raises AlreadyStarted,
        Refused (a bad request) or OSError (no room on disk); then nothing was started.
        """
        key = (request.job_id, request.attempt)
        job = SupervisedJob(
            key,
            self.job_dir(key),
            rank=request.rank,
            ignore_lease=request.ignore_lease,
            tenant=str(request.note.get("tenant", "")),
        )
        job.order = frame_of(request, job.job_dir, f"{self.state_dir}/{AGENT_SOCKET}")
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
        except ValueError as error:
            raise Refused(str(error)) from None
        self._jobs[key] = job
        await self._order(job)

    async def _order(self, job: SupervisedJob) -> None:
        """Send the order to the zygote; repeated if the supervisor that took it died before it read
        it.
        """
        job.orders += 1
        try:
            reply = await self._zygote.ask(job.order)
        except ZygoteLost as error:
            reply = {"error": str(error)}
        if "error" in reply:
            self._settle(job, f"no supervisor was started: {reply['error']}")
        else:
            self._repeating.run(
                self._watch_forked, job, reply["supervisor_pid"], reply["start_ticks"]
            )

    def _watch_forked(self, job: SupervisedJob, pid: int, start_ticks: int) -> None:
        """Watch a supervisor that was forked, unless it went on to another job since a failure."""
        if not job.exited and (job.supervisor_pid != pid or self._serving.get(pid) is job):
            self._watch(job, pid, start_ticks)

    def known(self) -> list[Known]:
        """Return the attempts that `start` found on disk, less those that were forgotten."""
        return list(self._known)

    async def stop(
        self, key: Key, signal_number: int = int(signal.SIGTERM), grace_s: float = 10.0
    ) -> None:
        """Ask the supervisor to stop the job; return once it has accepted. The end is an event.

        Harmless for a job that has ended.
        """
        await self._ask(
            self._job(key),
            {"op": "stop", "signal": int(signal_number), "grace_s": grace_s},
            STOP_TIMEOUT_S,
        )

    async def send_signal(self, key: Key, signal_number: int) -> None:
        """Send a signal to all processes of the job."""
        await self._ask(
            self._job(key), {"op": "signal", "signal": int(signal_number)}, STOP_TIMEOUT_S
        )

    async def status(self, key: Key) -> dict[str, Any] | None:
        """Return the supervisor's status of the job; None for a job that has ended."""
        return await self._ask(self._job(key), {"op": "status"}, STATUS_TIMEOUT_S)

    async def kill(self, key: Key) -> None:
        """Kill all processes of the job now.

        If the supervisor does not answer or cannot be asked it is killed, and the job dies with it.
        """
        job, request = self._job(key), {"op": "stop", "signal": int(signal.SIGKILL), "grace_s": 0}
        try:
            reply = await self._ask(job, request, STOP_TIMEOUT_S)
            # After a recorded end it may serve another job.
            if reply is None and records.read_exit(job.job_dir) is None:
                kill_supervisor(job)
        except (Unavailable, OSError) as error:
            logger.warning("the supervisor of %s attempt %d is killed: %s", *key, error)
            if self._serving.get(job.supervisor_pid) is job:
                kill_supervisor(job)

    def serve(self) -> bool:
        """Return whether a supervisor serves a job now."""
        return bool(self._serving)

    def end_leased(self) -> None:
        """Kill every supervisor that still serves a job which heeds the lease; the job dies with
        it.

        This needs neither the supervisor's answer nor the disk, which may both hang. A supervisor
        that has gone on to another job since is left to that job.
        """
        for job in self._jobs.values():
            if not job.ignore_lease and self._serving.get(job.supervisor_pid) is job:
                kill_supervisor(job)

    async def write_stdin(
        self, key: Key, offset: int, data: bytes, eof: bool = False
    ) -> tuple[int, bool]:
        """Pass input to the job; return the next offset wanted, and whether the input is over.

        Returns once the supervisor has taken all of it. Bytes that it has already are skipped. It
        takes less if the job has ended or closed its input. Raises Refused for a gap.
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

    def forget(self, key: Key) -> str:
        """Forget an ended attempt; its output, its exit record and a mark that it was started stay.

        Return its tenant. Raises Refused while it may still run.
        """
        job = self._job(key)
        if not job.exited:
            raise Refused(f"{key[0]} attempt {key[1]} has not ended: stop it first")
        with contextlib.suppress(FileNotFoundError):  # a person removed the directory
            os.rename(f"{job.job_dir}/{records.MARKER}", f"{job.job_dir}/{records.DONE}")
        del self._jobs[key]
        self._known = [found for found in self._known if (found.job_id, found.attempt) != key]
        return job.tenant

    def job_dir(self, key: Key) -> str:
        """Return the directory of an attempt, where `output.read` finds its output."""
        return f"{self.state_dir}/jobs/{key[0]}.{key[1]}"

    def _job(self, key: Key) -> SupervisedJob:
        try:
            return self._jobs[key]
        except KeyError:
            raise Refused(f"no job {key[0]} attempt {key[1]} on this node") from None

    async def _ask(
        self, job: SupervisedJob, request: dict[str, Any], timeout_s: float | None
    ) -> dict[str, Any] | None:
        """Send a request to the supervisor; return None if the job has ended.

        Raises Refused, and Unavailable if the supervisor cannot be asked.
        """
        return await control_client.ask_until_listening(
            job.job_dir, request, timeout_s, lambda: job.exited
        )

    async def _adopt(self, job: SupervisedJob) -> Known:
        """Find out whether the supervisor of a job on disk lives, and clean up if it does not."""
        why = "the agent was restarted between the order and the start; nothing was executed"
        identity, record = await asyncio.to_thread(
            lost.settle, job.job_dir, *job.key, job.rank, why
        )
        if identity is not None:
            self._watch(job, identity["pid"], identity["start_ticks"])
        return Known(*job.key, identity is not None, record)

    def _watch(self, job: SupervisedJob, pid: int, start_ticks: int) -> None:
        """Watch the supervisor's process; one that is dead already is noticed in a moment."""
        if pid in self._serving:  # it has gone on from that job, whose end is not told yet
            self._serving[pid].pidfd = -1
        job.supervisor_pid = pid
        self._serving[pid] = job
        job.pidfd = self._processes.watch(pid, start_ticks)
        if job.pidfd < 0:
            self._loop.call_soon(self._supervisor_gone, job)

    def _unwatch(self, job: SupervisedJob) -> None:
        job.pidfd = -1
        if self._serving.get(job.supervisor_pid) is job:
            del self._serving[job.supervisor_pid]

    def _process_gone(self, pid: int) -> None:
        job = self._serving.get(pid)
        if job is not None:
            self._supervisor_gone(job)

    def _supervisor_gone(self, job: SupervisedJob) -> None:
        """Deliver the end of the job, order it again if nothing was executed, or clean up."""
        self._unwatch(job)
        self._repeating.run(self._follow_end, job)

    def _follow_end(self, job: SupervisedJob) -> None:
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

    def _settle(self, job: SupervisedJob, why: str) -> None:
        """Clean up in a thread: processes of the job may have to be killed first."""
        self._spawn(self._settle_lost(job, why))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _settle_lost(self, job: SupervisedJob, why: str) -> None:
        try:
            identity, record = await asyncio.to_thread(
                lost.settle, job.job_dir, *job.key, job.rank, why
            )
            if identity is not None:
                self._watch(job, identity["pid"], identity["start_ticks"])
            elif record is not None:
                self._deliver(job, record)
        except OSError as error:
            self._repeating.later(error, self._settle, job, why)

    def _receive(self) -> None:
        """Handle the events that supervisors sent. The records on disk say what really happened."""
        for event in received(self._events):
            job = self._jobs.get((event.job_id, event.attempt))
            if job is not None:
                self._repeating.run(self._event_came, job, event.event)

    def _event_came(self, job: SupervisedJob, event: str) -> None:
        if event == "started":
            self._begin(job)
        elif (record := records.read_exit(job.job_dir)) is not None:
            self._deliver(job, record)

    def _begin(self, job: SupervisedJob) -> None:
        identity = None if job.started else records.read_identity(job.job_dir)
        if identity is not None:
            job.started, job.order = True, b""
            self._on_event(job.key, "started", identity)

    def _deliver(self, job: SupervisedJob, record: ExitRecord) -> None:
        if job.exited:
            return
        if record["executed"]:
            self._begin(job)
        job.exited, job.order = True, b""
        self._unwatch(job)
        self._on_event(job.key, "exited", record)

    async def _notice_missed_events(self) -> None:
        """Ask the supervisors that have not reported a start, in case the datagram was lost.

        Deliver the ends that were recorded and not told. What failed is tried again.
        """
        while True:
            self._repeating.repeat()
            running = [job for job in self._jobs.values() if not job.exited]
            for job, record in await asyncio.to_thread(ends_of, running):
                self._repeating.run(self._deliver, job, record)
            for job in [job for job in self._jobs.values() if job.pidfd >= 0 and not job.started]:
                try:
                    reply = await self._ask(job, {"op": "status"}, STATUS_TIMEOUT_S)
                    if reply is not None and reply["executed"]:
                        self._begin(job)
                except (Refused, Unavailable, OSError) as error:
                    text = "cannot tell whether %s attempt %d has started: %s"
                    logger.warning(text, *job.key, error)
            await asyncio.sleep(MISSED_EVENTS_EVERY_S)
