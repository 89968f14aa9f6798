"""The end of a job: requested stops, the lease, and the sweep of processes that it left behind.

The lease is enforced here, with or without an agent: SIGTERM at its notice before the deadline,
SIGKILL to everything half a second before it. Killing repeats until nothing is left, because a job
may fork faster than one pass over /proc; it is given up after GIVE_UP_NS.
"""

import contextlib
import os
import signal

from services.node_agent.machine import processes
from services.node_agent.supervisor import lease

NS_PER_S = 1_000_000_000
KILL_BEFORE_NS = NS_PER_S // 2
MAX_SLEEP_NS = NS_PER_S
SHUTDOWN_GRACE_NS = 10 * NS_PER_S
SWEEP_GRACE_NS = NS_PER_S // 5
KILL_AGAIN_NS = NS_PER_S // 100
GIVE_UP_NS = 10 * NS_PER_S

# As in libs/common/reasons.py, which this process must not import.
STOPPED = "stopped"
LEASE_EXPIRED = "lease_expired"
SUPERVISOR_LOST = "supervisor_lost"
# Why a job was told to end, as the detail of its exit record says it.
TOLD_TO_END = {
    STOPPED: " after a stop was requested",
    LEASE_EXPIRED: " because the node's lease ran out",
    SUPERVISOR_LOST: " because its supervisor received SIGTERM, as when the machine shuts down",
}


class Ending:
    """The end of one job.

    `reason` is why the main process was told to end; None if it was not. `left_behind` counts the
    processes that outlived a main process which was not killed with everything. `told` is why the
    attempt was told to end, also after its main process; `is_late`: the element was told to end,
    because its own time was over. `job_pid` is 0 while it is not known. `spared` are children that
    do not belong to the job. Times are CLOCK_BOOTTIME nanoseconds.
    """

    def __init__(self, job_pid: int, deadline: "memoryview[int] | None") -> None:
        self.reason: str | None = None
        self.told: str | None = None
        self.is_late = False
        self.left_behind = 0
        self.job_pid = job_pid
        self.spared: list[int] = []
        self._deadline = deadline
        self._main_alive = True
        self._sent = 0
        self._lease_over = False
        self._kill_at_ns: int | None = None
        self._killing_since_ns: int | None = None

    @property
    def begun(self) -> bool:
        return self.reason is not None or not self._main_alive

    def stop(self, number: int, grace_ns: int, now_ns: int, reason: str = STOPPED) -> None:
        """Send the signal, unless it was the last one sent. A later stop can only bring the kill
        forward.
        """
        self.told = self.told or reason
        if self._main_alive:
            self.reason = self.reason or reason
            if number not in (signal.SIGKILL, self._sent):
                self._sent = number
                self.signal_all(number)
        self._kill_no_later_than(now_ns if number == signal.SIGKILL else now_ns + grace_ns)

    def shut_down(self, now_ns: int) -> None:
        """End the job because the machine told its supervisor to end: the machine shuts down."""
        self.stop(signal.SIGTERM, SHUTDOWN_GRACE_NS, now_ns, SUPERVISOR_LOST)

    def end_late(self, grace_ns: int, now_ns: int) -> None:
        """End an element whose time is over, once; the attempt goes on."""
        if self._main_alive and not self.is_late and self.told is None:
            self.is_late = True
            self.signal_all(signal.SIGTERM)
            self._kill_no_later_than(now_ns + grace_ns)

    def begin_again(self, job_pid: int) -> None:
        """Begin the next element, after nothing of the last one was left."""
        self.job_pid, self._main_alive, self.is_late = job_pid, True, False
        self._kill_at_ns = self._killing_since_ns = None

    def main_ended(self, now_ns: int, killed: bool) -> None:
        """Note that the main process ended: terminate its descendants, and kill them soon.

        If it was `killed` with everything else, nothing counts as left behind: the others got the
        same signal, and the kernel ends them in any order.
        """
        self._main_alive = False
        if not killed or self._killing_since_ns is None:
            self.left_behind = self.signal_all(signal.SIGTERM)
        self._kill_no_later_than(now_ns + SWEEP_GRACE_NS)

    def enforce(self, now_ns: int) -> None:
        """Do what is due by now."""
        if (
            self._deadline is not None
            and not self._lease_over
            and now_ns >= self._deadline[0] - lease.notice_ns(self._deadline)
        ):
            self._lease_over = True
            kill_at_ns = self._deadline[0] - KILL_BEFORE_NS
            self.stop(signal.SIGTERM, max(0, kill_at_ns - now_ns), now_ns, LEASE_EXPIRED)
        if self._kill_at_ns is not None and now_ns >= self._kill_at_ns:
            self._killing_since_ns = self._killing_since_ns or now_ns
            processes.kill_below(os.getpid(), self.spared)

    def given_up(self, now_ns: int) -> bool:
        """Return whether processes that SIGKILL did not end hang in the kernel."""
        return self._killing_since_ns is not None and now_ns >= self._killing_since_ns + GIVE_UP_NS

    def sleep_ns(self, now_ns: int) -> int | None:
        """Return the time until something may be due.

        Never longer than MAX_SLEEP_NS if something will be due, so that a suspend is noticed.
        """
        if self._killing_since_ns is not None:
            return KILL_AGAIN_NS
        due = [] if self._kill_at_ns is None else [self._kill_at_ns]
        if self._deadline is not None and not self._lease_over:
            due.append(self._deadline[0] - lease.notice_ns(self._deadline))
        return min([MAX_SLEEP_NS, *(max(0, at - now_ns) for at in due)]) if due else None

    def signal_all(self, number: int) -> int:
        """Signal the job's process group at once, and every descendant outside it; return their
        number.
        """
        below = [
            found
            for pid in processes.descendants(os.getpid())
            if pid not in self.spared and (found := processes.process(pid)) is not None
        ]
        inside = [found.pid for found in below if self._main_alive and found.group == self.job_pid]
        if inside:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.job_pid, number)
        processes.send([found.pid for found in below if found.pid not in inside], number)
        return len(below)

    def _kill_no_later_than(self, at_ns: int) -> None:
        self._kill_at_ns = at_ns if self._kill_at_ns is None else min(self._kill_at_ns, at_ns)


def lease_is_over(deadline: "memoryview[int] | None", now_ns: int) -> bool:
    """Return whether a job that started now would have to end at once."""
    return deadline is not None and now_ns >= deadline[0] - lease.notice_ns(deadline)
