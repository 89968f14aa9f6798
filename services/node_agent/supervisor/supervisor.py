"""The supervision of one attempt: start the job, keep its output, end it, record and report that.

The process (`serving.py`) needs neither agent nor zygote. It is the subreaper of everything that
the job leaves behind. If it dies, the job's main process dies with it (PR_SET_PDEATHSIG), and the
agent sweeps the rest (`lost.py`). How a job ends: `ending.py`. Tests:
tests/integration/test_supervision_*.py.
"""

import contextlib
import functools
import os
import signal
import time
from typing import Any

from services.node_agent.machine import processes
from services.node_agent.machine.cgroups import Group
from services.node_agent.machine.poll_loop import READ, PollLoop
from services.node_agent.supervisor import child, lease, records
from services.node_agent.supervisor.control import Connection, Control
from services.node_agent.supervisor.elements import EXEC_FAILED, Elements
from services.node_agent.supervisor.ending import (
    LEASE_EXPIRED,
    TOLD_TO_END,
    Ending,
    lease_is_over,
)
from services.node_agent.supervisor.execs import Execs
from services.node_agent.supervisor.order import Order
from services.node_agent.supervisor.pump import Pump
from services.node_agent.supervisor.records import ExitRecord, Identity
from services.node_agent.supervisor.requests import Requests
from services.node_agent.supervisor.stdin_feed import StdinFeed
from services.node_agent.supervisor.telling import Telling

WAKE_BYTES = 4096
# Bounded, because clients may use the control socket all the time; a pipe takes two reads.
REST_READS = 64


def supervise(order: Order, group: Group) -> bool:
    """Supervise one attempt; return True if nothing of it is left and its end was reported."""
    os.chdir(order["job_dir"])
    return _run(order, group)


def enter() -> None:
    """Leave the zygote behind: its session, and its socket on descriptor 0."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.close(null)
    processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 1)
    processes.rename(lease.UNMARKED)


def _run(order: Order, group: Group) -> bool:
    """Claim the attempt, then fork, so that what is forked may execute."""
    deadline = lease.deadline_of(order["lease_path"], order["ignore_lease"])
    if lease_is_over(deadline, processes.boottime_ns()):
        detail = "the node's lease had expired before the start: nothing was executed"
        _refuse(order, group, LEASE_EXPIRED, exit_code=None, detail=detail)
        return False
    claimed = False
    try:
        group.limit(order["limits"])
        supervision = AttemptSupervision(order, deadline, group)
        claimed = records.claim(".", supervision.identity)
        if not claimed:
            return False
        if deadline is not None:
            processes.rename(lease.mark_of(order["lease_path"]))
        elements = Elements(order) if order["elements"] else None
        job = child.start_child(order) if elements is None else elements.begin_first()
    except OSError as error:  # no room for a process, a descriptor or a file
        detail = f"the supervisor could not set the job up: {error}"
        _refuse(
            order, group, EXEC_FAILED, child.EXIT_NOT_EXECUTABLE, detail=detail, claimed=claimed
        )
        return False
    return supervision.run(job, elements)


def _refuse(
    order: Order,
    group: Group,
    reason: str,
    exit_code: int | None,
    detail: str,
    claimed: bool = False,
) -> None:
    """End an attempt that never started, unless it belongs to another supervisor."""
    identity = _identity(order, "", group)
    with contextlib.suppress(OSError):
        if not claimed and not records.claim(".", identity):
            return
    record = records.unexecuted(identity, reason, detail, time.time_ns())
    record["exit_code"] = exit_code
    records.write_exit(".", record)
    Telling(order).ended()


def _identity(order: Order, control: str, group: Group) -> Identity:
    return Identity(
        job_id=order["job_id"],
        attempt=order["attempt"],
        rank=order["rank"],
        pid=os.getpid(),
        start_ticks=_start_ticks(os.getpid()),
        job_pid=0,
        job_start_ticks=0,
        boot_id=processes.boot_id(),
        started_ns=time.time_ns(),
        control=control,
        cgroup=group.path,
    )


@functools.cache
def _start_ticks(pid: int) -> int:
    """Return this process's start time in clock ticks since boot."""
    me = processes.process(pid)
    assert me is not None
    return me.start_ticks


class AttemptSupervision:
    """The supervision of one attempt, made before the fork. `executed`: exec has succeeded."""

    def __init__(self, order: Order, deadline: "memoryview[int] | None", group: Group) -> None:
        self._telling = Telling(order)
        self._loop = PollLoop()
        self._wakeups = self._listen_to_signals()
        self._order = order
        self._group = group
        self._deadline = deadline
        self._main_status: int | None = None
        self._failure: tuple[int, str] | None = None
        self._childless = False
        self._executed = False
        self._control = Control(self._loop, self._answer)
        self.identity = _identity(order, self._control.name, group)

    def _begin(self, job: child.Child) -> None:
        self._job = job
        self._pid = job.pid
        self._began_ns = processes.boottime_ns()
        self._ending: Ending = Ending(job.pid, self._deadline)
        limit = self._order["output_limit_bytes"]
        self._stdout, self._stderr = (
            Pump(job.stdout, "stdout", limit),
            Pump(job.stderr, "stderr", limit),
        )
        self._feed = StdinFeed(self._loop, job.stdin, self._control.retry)
        self._execs = Execs(self._order, self._ending)
        self._requests = Requests(
            identity=self.identity,
            ending=self._ending,
            feed=self._feed,
            execs=self._execs,
            status=self._status,
            deny=self._group.deny,
        )
        self._note_child()
        for pump in (self._stdout, self._stderr):
            self._loop.watch(pump.fd, READ, functools.partial(self._pump, pump))
        if self._elements is None:
            self._loop.watch(job.status, READ, self._read_status)
        else:
            self._loop.watch(job.status, READ, self._elements.read_failure)
            self._stdout.heading = self._stderr.heading = self._elements.heading
            self._note_started()

    def run(self, job: child.Child, elements: Elements | None = None) -> bool:
        """See `supervise`."""
        self._elements = elements
        self._begin(job)
        self._await_end()
        while self._begin_next():
            self._await_end()
        return self._finish() and self._let_go()

    def _await_end(self) -> None:
        """Return once nothing of the process that was started is left, or it is given up."""
        now_ns = processes.boottime_ns()
        while not self._is_finished(now_ns):
            self._loop.run_once(self._sleep_ns(now_ns))
            now_ns = processes.boottime_ns()
            self._note_pid()
            if self._elements is not None:
                self._elements.enforce(self._ending, now_ns)
            self._ending.enforce(now_ns)
            self._execs.enforce(now_ns)
            self._telling.enforce(now_ns)

    def _sleep_ns(self, now_ns: int) -> int | None:
        """Return the time until something may be due; None if nothing will be."""
        due = [
            self._ending.sleep_ns(now_ns),
            self._execs.sleep_ns(now_ns),
            self._telling.sleep_ns(now_ns),
            self._elements.due_ns() if self._elements is not None else None,
        ]
        return min([at for at in due if at is not None], default=None)

    def _begin_next(self) -> bool:
        """Begin the next element of a batch; return False if none follows."""
        if self._elements is None or not self._childless:
            return False
        self._take_rest()
        self._elements.ended(self._main_status, self._ending)
        if self._ending.told is not None or not self._elements.begin_next():
            self._ending.reason = self._ending.told
            return False
        self._pid, self._main_status, self._childless = 0, None, False
        self._stdout.heading = self._stderr.heading = self._elements.heading
        self._ending.begin_again(0)
        self._ending.spared = [self._elements.starter_pid]
        return True

    def _note_pid(self) -> None:
        """Note the process of an element as soon as it has begun."""
        if not self._pid and self._elements is not None:
            self._pid = self._ending.job_pid = self._elements.pid

    def _answer(self, request: dict[str, Any], connection: Connection) -> dict[str, Any] | None:
        self._note_pid()
        return self._requests.answer(request, connection)

    def _take_rest(self) -> None:
        """Read what ended processes left in their pipes."""
        for _ in range(REST_READS):
            if not self._loop.run_once(0):
                break

    def _note_child(self) -> None:
        """Record the child. It is not reaped yet, so its pid is its own."""
        found = processes.process(self._pid)
        assert found is not None
        self.identity["job_pid"], self.identity["job_start_ticks"] = found.pid, found.start_ticks
        with contextlib.suppress(OSError):
            records.add_child(".", found.pid, found.start_ticks)

    def _is_finished(self, now_ns: int) -> bool:
        return self._childless or self._ending.given_up(now_ns)

    # What wakes the loop.

    def _listen_to_signals(self) -> int:
        """Handle SIGCHLD, and SIGTERM at shutdown. Their handlers were installed in the zygote."""
        wakeups, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        self._loop.watch(wakeups, READ, self._signalled)
        return wakeups

    def _signalled(self) -> None:
        if signal.SIGTERM in os.read(self._wakeups, WAKE_BYTES):
            self._ending.shut_down(processes.boottime_ns())
        self._reap()

    def _reap(self) -> None:
        """Reap the zombies; their number bounds the loop."""
        main_ended = exec_ended = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True
                break
            if pid == 0:
                if self._elements is not None and self._main_status is not None:
                    self._childless = self._elements.is_all_ended()
                break
            if self._elements is not None and self._elements.has_starter_ended(pid):
                self._ending.spared = []  # another process may get its pid
                continue
            if self._execs.reaped(pid, status):
                exec_ended = True
                continue
            self._note_pid()
            if pid == self._pid or not self._pid:  # without a pid it ended before it executed
                self._main_status, main_ended = status, True
        if exec_ended:
            self._control.retry()
        if main_ended and not self._childless:
            ended = self._main_status or 0
            killed = os.WIFSIGNALED(ended) and os.WTERMSIG(ended) == signal.SIGKILL
            self._ending.main_ended(processes.boottime_ns(), killed)

    def _pump(self, pump: Pump) -> None:
        descriptor = pump.fd
        if not pump.pump() and pump.fd < 0:
            self._loop.forget(descriptor)

    def _read_status(self) -> None:
        """Read a failure before exec; exec closes the pipe."""
        raw = os.read(self._job.status, child.FAILURE.size)
        self._loop.unwatch(self._job.status)
        os.close(self._job.status)
        self._job = self._job._replace(status=-1)
        if raw:
            self._failure = child.explain_failure(raw, self._order)
            return
        self._note_started()

    def _note_started(self) -> None:
        self._executed = True
        self._telling.started(processes.boottime_ns())

    def _status(self) -> dict[str, Any]:
        state = (
            "ending"
            if self._main_status is not None
            else "stopping"
            if self._ending.reason
            else "running"
        )
        return {
            "state": state if self._executed else "starting",
            "executed": self._executed,
            "job_pid": self._pid,
            "stdout_bytes": self._stdout.stored,
            "stderr_bytes": self._stderr.stored,
            "dropped_bytes": self._stdout.dropped + self._stderr.dropped,
            "stdin_next": self._feed.next_offset,
        }

    # The end.

    def _finish(self) -> bool:
        """Write the record, then report the end, so that every reader of the event finds it on
        disk.

        If the datagram cannot be delivered, the agent notices that this process exited.
        """
        if self._elements is not None:
            self._elements.close()
            self._loop.unwatch(self._job.status)
            os.close(self._job.status)
        elif self._job.status >= 0:
            self._read_status()
        for pump in (self._stdout, self._stderr):
            pump.drain()
        left = self._group.others() if self._childless else processes.descendants(os.getpid())
        records.write_exit(".", self._record(records.leftovers_of(left)))
        return self._telling.ended() and not left

    def _let_go(self) -> bool:
        """Close what belongs to this attempt."""
        processes.rename(lease.UNMARKED)
        signal.set_wakeup_fd(-1)
        for descriptor in (self._wakeups, self._wake):
            os.close(descriptor)
        self._control.close()
        self._feed.close()
        return True

    def _record(self, leftovers: list[records.Leftover]) -> ExitRecord:
        record = records.unexecuted(self.identity, "exited", "", self.identity["started_ns"])
        record["executed"] = self._executed
        record["ended_ns"] = time.time_ns()
        record["duration_ns"] = processes.boottime_ns() - self._began_ns
        record["stdout_bytes"], record["stderr_bytes"] = self._stdout.stored, self._stderr.stored
        record["dropped_bytes"] = self._stdout.dropped + self._stderr.dropped
        record["leftovers"], record["clean"] = leftovers, not leftovers
        self._explain(record)
        if self._elements is not None:
            self._elements.describe(record)
        return record

    def _explain(self, record: ExitRecord) -> None:
        status, kills = self._main_status, self._group.new_memory_kills()
        if self._failure is not None:
            record["reason"] = EXEC_FAILED
            record["exit_code"], record["detail"] = self._failure
            return
        if status is None:
            how = f"the main process {self._pid} could not be killed"
        elif os.WIFSIGNALED(status):
            record["signal"], record["reason"] = os.WTERMSIG(status), "signalled"
            how = f"the main process was ended by signal {record['signal']}"
        else:
            record["exit_code"] = os.WEXITSTATUS(status)
            how = f"the main process exited with {record['exit_code']}"
            how = records.read_failure(".") or how
        record["reason"] = self._ending.reason or record["reason"]
        if kills:
            limit = self._order["limits"].get("memory_bytes", 0)
            how = records.note_out_of_memory(record, kills, limit) + how
        left = (
            f"; it left {self._ending.left_behind} processes behind, which were ended"
            if self._ending.left_behind
            else ""
        )
        rest = (
            f"; {len(record['leftovers'])} processes could not be ended"
            if record["leftovers"]
            else ""
        )
        record["detail"] = how + TOLD_TO_END.get(record["reason"], "") + left + rest
