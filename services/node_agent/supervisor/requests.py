"""The requests on a supervisor's control socket (`control.py`).

{"op": "stop", "signal": 15, "grace_s": 10.0}; {"op": "signal", "signal": n}; {"op": "status"};
{"op": "stdin", "offset": n, "data": base64, "eof": bool}, answered once all data was taken; {"op":
"exec", "argv": [...], "env": {...}, "limit": n} with descriptors; {"op": "exec_wait", "exec": n},
answered at its end; {"op": "exec_signal", "exec": n, "signal": n} (`execs.py`); {"op": "deny",
"denied": [[major, minor], ...]}: from now on the job can open none of these devices, and all others
(`Group.deny` in `machine/cgroups.py`). The answer's "failed" is why the kernel refused, empty if it
did not. A bad request, or one for another "job" (a supervisor serves one after the other), raises
ValueError, which becomes {"error": text}.
"""

import binascii
import signal
from collections.abc import Callable
from typing import Any

from services.node_agent.machine.processes import boottime_ns
from services.node_agent.supervisor.control import Connection
from services.node_agent.supervisor.ending import Ending
from services.node_agent.supervisor.execs import Execs
from services.node_agent.supervisor.records import Identity
from services.node_agent.supervisor.stdin_feed import StdinFeed

NS_PER_S = 1_000_000_000
MAX_GRACE_S = 7 * 24 * 3600.0
DEFAULT_GRACE_S = 10.0

Request = dict[str, Any]


class Requests:
    """The answers of one attempt's supervisor; `status` returns the answer to a status request."""

    def __init__(
        self,
        identity: Identity,
        ending: Ending,
        feed: StdinFeed,
        execs: Execs,
        status: Callable[[], Request],
        deny: Callable[[list[list[int]]], None],
    ) -> None:
        self._job = f"{identity['job_id']}.{identity['attempt']}"
        self._ending = ending
        self._feed = feed
        self._execs = execs
        self._status = status
        self._deny = deny

    def answer(self, request: Request, connection: Connection) -> Request | None:
        """Return the reply; None: not yet, ask again. Raises ValueError for a bad request."""
        if request.get("job", self._job) != self._job:
            raise ValueError(f"this supervisor serves {self._job} now")
        match request.get("op"):
            case "stop":
                return self._stop(request)
            case "signal":
                return {"processes": self._ending.signal_all(_signal_number(request.get("signal")))}
            case "stdin":
                return self._stdin(request)
            case "status":
                return self._status()
            case "exec":
                return self._execs.begin(request, connection)
            case "exec_wait":
                return self._execs.wait(request)
            case "exec_signal":
                return self._execs.signal(request, _signal_number(request.get("signal")))
            case "deny":
                return self._set_denied(request.get("denied"))
            case other:
                raise ValueError(
                    f"no op {other!r}: stop, signal, stdin, status, exec, exec_wait, exec_signal "
                    "or deny"
                )

    def _set_denied(self, denied: object) -> Request:
        if not isinstance(denied, list) or not all(map(_is_device, denied)):
            raise ValueError("denied needs devices as [major, minor]")
        try:
            self._deny(denied)
        except OSError as error:
            return {"failed": f"{error.filename}: {error.strerror}"}
        return {"failed": ""}

    def _stop(self, request: Request) -> Request:
        number = _signal_number(request.get("signal", int(signal.SIGTERM)))
        grace_s = request.get("grace_s", DEFAULT_GRACE_S)
        if type(grace_s) not in (int, float) or not 0 <= grace_s <= MAX_GRACE_S:
            raise ValueError(f"grace_s must be a number from 0 to {MAX_GRACE_S:.0f}")
        self._ending.stop(number, int(grace_s * NS_PER_S), boottime_ns())
        return {"stopping": True}

    def _stdin(self, request: Request) -> Request | None:
        offset, text = request.get("offset"), request.get("data", "")
        if type(offset) is not int or offset < 0 or not isinstance(text, str):
            raise ValueError("stdin needs an offset from 0 and data in base64")
        if offset > self._feed.next_offset:
            raise ValueError(
                f"a gap: the next byte wanted is {self._feed.next_offset}, not {offset}"
            )
        try:
            data = binascii.a2b_base64(text, strict_mode=True)
        except binascii.Error as error:
            raise ValueError(f"data is not base64: {error}") from None
        if not self._feed.offer(offset, data, request.get("eof") is True):
            return None
        return {"next": self._feed.next_offset, "closed": self._feed.over}


def _is_device(device: object) -> bool:
    return isinstance(device, list) and [*map(type, device)] == [int, int]


def _signal_number(number: object) -> int:
    if type(number) is not int or number not in signal.valid_signals():
        raise ValueError(f"{number!r} is not the number of a signal")
    return number
