"""A job's connection to the memory broker of its node.

`BrokerClient.from_environment()` uses MUSTER_MEMORY_SOCKET and MUSTER_MEMORY_TOKEN, which a job
with `--pool` has. If the broker was restarted, the next call connects again: grants stay valid.
Tests: tests/integration/test_memory_broker.py.
"""

import os
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from libs.job.memory.broker_wire import BadMessage, Ended, Link

ANSWER_S: Final = 60.0
AGAIN_S: Final = 0.05


class BrokerError(Exception):
    """The broker refused a request, or no broker answers.

    `reason` is one word: `quota`, `full`, `size`, `device`, `token`, `process`, `released`,
    `lost`, `grants`, `rate`, `driver`, `unreachable` or `environment`.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Granted(NamedTuple):
    """Granted memory. The caller owns `descriptor` and closes it. `bytes` may be rounded up."""

    grant: int
    bytes: int
    descriptor: int


class BrokerClient:
    """Asks the broker for memory and returns it; safe for use by several threads."""

    def __init__(self, path: str, token: bytes, answer_s: float = ANSWER_S) -> None:
        self.path = path
        self.token = token
        self.answer_s = answer_s
        self._link: Link | None = None
        self._pid = 0
        # Numbers of requests: the broker answers a repeated one with the same grant. Several
        # clients of one process differ by their start.
        self._asks = time.monotonic_ns()
        self._lock = threading.Lock()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> "BrokerClient":
        """Return a client for this job's pool. Raises BrokerError without a pool."""
        path, token = environ.get("MUSTER_MEMORY_SOCKET"), environ.get("MUSTER_MEMORY_TOKEN")
        if not path or not token:
            raise BrokerError(
                "environment",
                "this process has no pool: MUSTER_MEMORY_SOCKET and MUSTER_MEMORY_TOKEN are not "
                "set. Submit the job with --pool SIZE",
            )
        return cls(path, token.encode())

    def grant(self, device: int, size: int, purpose: str = "") -> Granted:
        """Ask for `size` bytes of the job's device number `device` (-1: host memory).

        Raises BrokerError.
        """
        with self._lock:
            self._asks += 1
            request = {"op": "grant", "device": device, "bytes": size, "purpose": purpose}
            answer = self._ask({**request, "id": self._asks})
            assert self._link is not None
            return Granted(answer["grant"], answer["bytes"], self._link.take_descriptor())

    def give_back(self, grant: int) -> None:
        """Return a grant. Unmap it and close its descriptor first. Raises BrokerError."""
        with self._lock:
            self._ask({"op": "return", "grant": grant})

    def stats(self) -> dict[str, Any]:
        """Return `limits` and `used` (bytes), `drivers`, all by device, and how many `grants`."""
        with self._lock:
            return self._ask({"op": "stats"})

    def close(self) -> None:
        """Close the connection. What this process holds stays granted until it ends."""
        with self._lock:
            self._drop()

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        until = time.monotonic() + self.answer_s
        while True:
            try:
                return _checked(self._exchange(message, until))
            except (OSError, Ended, BadMessage) as error:
                self._drop()
                if time.monotonic() >= until:
                    raise BrokerError(
                        "unreachable",
                        f"the memory broker at {self.path} does not answer ({error or 'ended'}): "
                        "check the node's agent",
                    ) from error
                time.sleep(AGAIN_S)

    def _exchange(self, message: dict[str, Any], until: float) -> dict[str, Any]:
        if self._pid != os.getpid():  # after a fork the connection is the parent's
            self._drop()
        if self._link is None:
            self._connect(until)
        assert self._link is not None
        return _answer(self._link, message, until)

    def _connect(self, until: float) -> None:
        stream = socket.socket(socket.AF_UNIX)
        try:
            folder = os.open(os.path.dirname(self.path), os.O_PATH | os.O_CLOEXEC)
            try:  # a socket path has at most 107 bytes
                stream.connect(f"/proc/self/fd/{folder}/{os.path.basename(self.path)}")
            finally:
                os.close(folder)
        except OSError:
            stream.close()
            raise
        link = Link(stream, accepts=True)
        try:
            _checked(_answer(link, {"op": "hello", "token": self.token}, until))
        except (OSError, Ended, BadMessage, BrokerError):
            link.close()
            raise
        self._link, self._pid = link, os.getpid()

    def _drop(self) -> None:
        if self._link is not None:
            with suppress(OSError):
                self._link.close()
        self._link = None


def _answer(link: Link, message: dict[str, Any], until: float) -> dict[str, Any]:
    link.stream.settimeout(max(AGAIN_S, until - time.monotonic()))
    link.send(message)
    while (answer := link.message()) is None:
        link.stream.settimeout(max(AGAIN_S, until - time.monotonic()))
        link.receive()
    return answer


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    if not answer.get("ok"):
        raise BrokerError(str(answer.get("reason")), str(answer.get("detail")))
    return answer
