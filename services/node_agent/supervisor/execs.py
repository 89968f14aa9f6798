"""Processes beside a running job (`muster exec`): children of its supervisor, with its environment.

They end with the job's main process, with the lease, and with the supervisor; none keeps a job from
ending. Each also ends with the connection that asked for it: HUP to its process group, KILL after
HANGUP_GRACE_NS. Background processes that it leaves live at most as long as the job. Tests:
tests/integration/test_supervision_execs.py.
"""

import contextlib
import itertools
import os
import signal
from typing import Any, NamedTuple, cast

from services.node_agent.machine import processes
from services.node_agent.supervisor import child, order
from services.node_agent.supervisor.control import Connection
from services.node_agent.supervisor.ending import KILL_AGAIN_NS, NS_PER_S, Ending
from services.node_agent.supervisor.order import Order

# The bound for one job, whatever the agent allows.
EXECS_MAX = 32
HANGUP_GRACE_NS = 2 * NS_PER_S
SIGNALLED = 128

Request = dict[str, Any]


class _Exec(NamedTuple):
    """A child that was not reaped yet, so its pid is not reused."""

    pid: int
    status: int
    order: Order


class Execs:
    """The execs of one attempt. Clients know them by a number that is never reused,
    unlike a pid.
    """

    def __init__(self, job: Order, ending: Ending) -> None:
        self._job = job
        self._ending = ending
        self._numbers = itertools.count(1)
        self._living: dict[int, _Exec] = {}
        self._ended: dict[int, Request] = {}
        self._kill_at_ns: dict[int, int] = {}

    def begin(self, request: Request, connection: Connection) -> Request:
        """Start one. Raises ValueError if it may not be started."""
        descriptors, connection.descriptors = connection.descriptors, []
        try:
            return self._begin(request, connection, descriptors)
        except OSError as error:
            raise ValueError(f"the node has no room for another process: {error}") from None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _begin(self, request: Request, connection: Connection, descriptors: list[int]) -> Request:
        limit, env = min(int(request.get("limit", EXECS_MAX)), EXECS_MAX), request.get("env", {})
        if self._ending.begun:
            raise ValueError("the job is ending")
        if len(self._living) >= limit:
            raise ValueError(
                f"{limit} are running in this job already, and no more may (MUSTER_EXECS_PER_JOB)"
            )
        if (
            len(descriptors) not in (1, 3)
            or connection.on_close is not None
            or not isinstance(env, dict)
        ):
            raise ValueError(
                "an exec comes with its three streams or one terminal, alone on its connection"
            )
        wanted = order.checked(
            {**self._job, "argv": request.get("argv"), "env": {**self._job["env"], **env}}
        )
        number = next(self._numbers)
        self._living[number] = _Exec(*child.fork_beside(wanted, descriptors), wanted)
        connection.on_close = lambda: self._hang_up(number)
        return {"exec": number}

    def wait(self, request: Request) -> Request | None:
        """Return how it ended; None while it runs."""
        number = cast(int, request.get("exec"))
        if number not in self._living and number not in self._ended:
            raise ValueError(f"no exec {number!r}")
        return self._ended.get(number)

    def signal(self, request: Request, number: int) -> Request:
        found = self._living.get(cast(int, request.get("exec")))
        if found is not None:
            _send(found.pid, number)
        return {"sent": found is not None}

    def reaped(self, pid: int, status: int) -> bool:
        """Note the end of a child; return whether it was an exec."""
        if not self._living:
            return False
        number = next((number for number, found in self._living.items() if found.pid == pid), None)
        if number is None:
            return False
        found = self._living.pop(number)
        self._kill_at_ns.pop(number, None)
        self._ended[number] = self._explain(found, os.waitstatus_to_exitcode(status))
        os.close(found.status)
        return True

    def _explain(self, found: _Exec, code: int) -> Request:
        """Return the text of its end: a failure before exec is in its pipe."""
        try:
            raw = os.read(found.status, child.FAILURE.size)
        except BlockingIOError:
            raw = b""
        if raw:
            code, detail = child.explain_failure(raw, found.order)
        elif code < 0:
            code, detail = (
                SIGNALLED - code,
                "it was ended with its job" if self._ending.begun else "",
            )
        else:
            detail = ""
        return {"exit_code": code, "detail": detail}

    def _hang_up(self, number: int) -> None:
        """Hang up an exec whose connection is gone."""
        self._ended.pop(number, None)
        if number in self._living:
            _send(self._living[number].pid, signal.SIGHUP)
            self._kill_at_ns[number] = processes.boottime_ns() + HANGUP_GRACE_NS

    def enforce(self, now_ns: int) -> None:
        for number, at_ns in self._kill_at_ns.items():
            if now_ns >= at_ns:
                pid = self._living[number].pid
                processes.send(processes.descendants(pid), signal.SIGKILL)
                _send(pid, signal.SIGKILL)
                self._kill_at_ns[number] = now_ns + KILL_AGAIN_NS

    def sleep_ns(self, now_ns: int) -> int | None:
        """Return the time until something may be due."""
        return min((max(0, at_ns - now_ns) for at_ns in self._kill_at_ns.values()), default=None)


def _send(pid: int, number: int) -> None:
    """Signal the process group; in its first moment the process has none yet."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
