"""How one job is brought to its end: requested stops, the lease, and the sweep of what the main
process left behind.

The lease is enforced here, agent alive or not: SIGTERM two seconds before the deadline, SIGKILL of
everything half a second before it. Killing is repeated until nothing is left, because a job may
fork faster than one look at /proc; it is given up after GIVE_UP_NS.
"""

import contextlib
import os
import signal

from services.node_agent.machine import processes

NS_PER_S = 1_000_000_000
TERM_BEFORE_NS = 2 * NS_PER_S
KILL_BEFORE_NS = NS_PER_S // 2
MAX_SLEEP_NS = NS_PER_S
SWEEP_GRACE_NS = NS_PER_S // 5
KILL_AGAIN_NS = NS_PER_S // 100
GIVE_UP_NS = 10 * NS_PER_S

# As in libs/common/reasons.py, which this process must not import.
STOPPED = "stopped"
LEASE_EXPIRED = "lease_expired"


class Ending:
    """`reason` is why the main process was told to end, None while it was not; `left_behind` how
    many outlived one that was not killed with everything.

    All times are CLOCK_BOOTTIME nanoseconds.
    """

    def __init__(self, job_pid: int, deadline: "memoryview[int] | None") -> None:
        self.reason: str | None = None
        self.left_behind = 0
        self._job_pid = job_pid
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
        """A stop sends its signal, unless that was the last one sent; a later one can only bring
        the kill forward.
        """
        if self._main_alive:
            self.reason = self.reason or reason
            if number not in (signal.SIGKILL, self._sent):
                self._sent = number
                self.signal_all(number)
        self._kill_by(now_ns if number == signal.SIGKILL else now_ns + grace_ns)

    def main_ended(self, now_ns: int, killed: bool) -> None:
        """Descendants are left: they are asked, and soon killed.

        By one that was `killed` with everything else nobody was left behind: whoever is still there
        was sent the same signal, and the kernel ends them in any order.
        """
        self._main_alive = False
        if not killed or self._killing_since_ns is None:
            self.left_behind = self.signal_all(signal.SIGTERM)
        self._kill_by(now_ns + SWEEP_GRACE_NS)

    def enforce(self, now_ns: int) -> None:
        """Whatever is due by now."""
        if (
            self._deadline is not None
            and not self._lease_over
            and now_ns >= self._deadline[0] - TERM_BEFORE_NS
        ):
            self._lease_over = True
            kill_at_ns = self._deadline[0] - KILL_BEFORE_NS
            self.stop(signal.SIGTERM, max(0, kill_at_ns - now_ns), now_ns, LEASE_EXPIRED)
        if self._kill_at_ns is not None and now_ns >= self._kill_at_ns:
            self._killing_since_ns = self._killing_since_ns or now_ns
            processes.kill_below(os.getpid())

    def given_up(self, now_ns: int) -> bool:
        """What SIGKILL has not ended by now hangs in the kernel."""
        return self._killing_since_ns is not None and now_ns >= self._killing_since_ns + GIVE_UP_NS

    def sleep_ns(self, now_ns: int) -> int | None:
        """Until something may be due; never longer than MAX_SLEEP_NS when something will be, so
        that a suspend is noticed.
        """
        if self._killing_since_ns is not None:
            return KILL_AGAIN_NS
        due = [] if self._kill_at_ns is None else [self._kill_at_ns]
        if self._deadline is not None and not self._lease_over:
            due.append(self._deadline[0] - TERM_BEFORE_NS)
        return min([MAX_SLEEP_NS, *(max(0, at - now_ns) for at in due)]) if due else None

    def signal_all(self, number: int) -> int:
        """To the job's process group at once, and to every descendant outside it.

        Returns how many processes were there.
        """
        below = [
            found
            for pid in processes.descendants(os.getpid())
            if (found := processes.process(pid)) is not None
        ]
        inside = [found.pid for found in below if self._main_alive and found.group == self._job_pid]
        if inside:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._job_pid, number)
        processes.send([found.pid for found in below if found.pid not in inside], number)
        return len(below)

    def _kill_by(self, at_ns: int) -> None:
        self._kill_at_ns = at_ns if self._kill_at_ns is None else min(self._kill_at_ns, at_ns)


def lease_is_over(deadline: "memoryview[int] | None", now_ns: int) -> bool:
    """Whether a job that began now would be told to end at once."""
    return deadline is not None and now_ns >= deadline[0] - TERM_BEFORE_NS
