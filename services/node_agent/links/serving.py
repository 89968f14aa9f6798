"""One session at the serving node: parts of the granted files, one request at a time.

The grant names job, attempt and path, so a request can only choose a place below that path. Reads
are those of `muster cp` (`jobs/files.py`): as the job's user, and never outside its directory. Of
kept weights only the recorded files are read (`kept_weights.py`), and of uploads only the granted
archive (`shared_uploads.py`).
Tests: tests/integration/test_agent_links.py, tests/attack/test_agent_links.py.
"""

import hashlib
import os
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from libs.common.messages.file_messages import OUTSIDE, UNREADABLE, FileAsk, FilePart
from libs.common.messages.link_messages import (
    ASK_BYTES_MAX,
    LinkAsk,
    LinkRequest,
    PartAsk,
    Sum,
    SumAsk,
)
from libs.job.transport.errors import LinkError
from libs.job.transport.link import Link
from services.node_agent.links.rates import Rates

# A session without requests ends after this time.
IDLE_S: Final = 30.0
LOOK_S: Final = 0.2
SECOND_NS: Final = 1_000_000_000
# Bytes of a path in a message.
SHOWN_MAX: Final = 128

_request = msgspec.msgpack.Decoder(LinkRequest)
_encode = msgspec.msgpack.Encoder().encode


class Session:
    """One granted session. `part` reads a part of a file of the job."""

    def __init__(
        self, link: Link, ask: LinkAsk, part: Callable[[FileAsk], FilePart], rates: Rates
    ) -> None:
        self.link, self.ask, self.part, self.rates = link, ask, part, rates
        self._path, self._sent, self._sum = b"", 0, hashlib.sha256()

    def serve(self, closed: threading.Event) -> None:
        """Answer until the dialler closes the link, is silent or breaks the rules."""
        idle_s = time.monotonic() + IDLE_S
        while not closed.is_set() and time.monotonic() < idle_s:
            try:
                with self.link.recv(within_s=LOOK_S) as message:
                    data = bytes(message.view[: ASK_BYTES_MAX + 1])
            except LinkError as error:
                if error.cause == "STALLED":
                    continue
                return
            try:
                answer = self._answer(_request.decode(data))
            except msgspec.DecodeError:
                return
            if not self._send(answer, closed):
                return
            idle_s = time.monotonic() + IDLE_S

    def _send(self, answer: FilePart | Sum, closed: threading.Event) -> bool:
        data = _encode(answer)
        wait_ns = self.rates.wait_ns(self.ask.tenant, len(data), time.monotonic_ns())
        if closed.wait(wait_ns / SECOND_NS):
            return False
        try:
            self.link.send(data, within_s=IDLE_S)
        except LinkError:
            return False
        return True

    def _answer(self, request: PartAsk | SumAsk) -> FilePart | Sum:
        if isinstance(request, SumAsk):
            return self._summed(request)
        if not is_below(request.path, self.ask.path):
            text = (
                f"{_shown(request.path)} is not below {_shown(self.ask.path)}: ask for paths there"
            )
            return FilePart(fault=OUTSIDE, text=text)
        if request.offset < 0:
            return FilePart(fault=UNREADABLE, text=f"offset {request.offset}: give 0 or more")
        ask = FileAsk(
            self.ask.job_id, self.ask.attempt, request.path, request.offset, request.after
        )
        found = self.part(ask)
        self._count(request, found)
        return found

    def _count(self, request: PartAsk, found: FilePart) -> None:
        """Add the part to the sum of its file. Only files that are read in order have a sum.

        Kept weights and uploads have none: the dialler knows their recorded SHA-256.
        """
        if self.ask.model or self.ask.upload:
            return
        if request.offset == 0:
            self._path, self._sent, self._sum = request.path, 0, hashlib.sha256()
        if (request.path, request.offset) == (self._path, self._sent):
            self._sum.update(found.data)
            self._sent += len(found.data)

    def _summed(self, request: SumAsk) -> Sum:
        if (request.path, request.size_bytes) != (self._path, self._sent):
            return Sum(fault=f"the file was not sent whole, only {self._sent} bytes: read it again")
        return Sum(self._sum.hexdigest())


def is_below(path: bytes, top: bytes) -> bool:
    """Return whether a path is the granted one or below it, as names and without `..`.

    Where links lead is checked at the read itself.
    """
    if b".." in path.split(b"/"):
        return False
    wanted, granted = os.path.normpath(path or b"."), os.path.normpath(top or b".")
    if granted == b".":
        return not wanted.startswith(b"/")
    return wanted == granted or wanted.startswith(granted.rstrip(b"/") + b"/")


def _shown(path: bytes) -> str:
    return path[:SHOWN_MAX].decode("utf-8", "backslashreplace") or "."
