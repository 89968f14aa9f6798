"""The copies that one agent fetches from other nodes: started and watched by gateways.

Each copy has a thread and one link. Their number is bounded, in all and for each tenant, and so is
the number of ended copies whose result is remembered. A restarted agent remembers none. Tests:
tests/integration/test_copies.py, tests/attack/test_copies.py.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Final

import msgspec

from libs.common.errors import MusterError
from libs.common.messages.copy_messages import (
    COPIED,
    COPYING,
    FAILED,
    UNKNOWN,
    CopyPoll,
    CopyRequest,
    CopyStart,
    CopyState,
)
from libs.common.messages.file_messages import BROKEN, BUSY, MISSING, OUTSIDE, PRUNED, UNWRITABLE
from libs.common.messages.link_messages import LinkOffer
from libs.common.model import AttemptRef
from libs.common.subjects import ask_node
from libs.common.transport.bus import Bus
from services.node_agent.fabric.choice import Choices
from services.node_agent.fabric.tokens import LinkKey, NodeAccess
from services.node_agent.jobs.files import Fault, RootOf
from services.node_agent.links.asking import ANSWER_S
from services.node_agent.links.dialling import peer_at
from services.node_agent.links.fetching import Fetch, Progress
from services.node_agent.links.landing import landing
from services.node_agent.links.members import Members

COPIES_MAX: Final = 8
COPIES_PER_TENANT: Final = 4
# Ended copies that are remembered.
ENDED_MAX: Final = 256
# A copy ends after the time for which its token is valid.
COPY_S: Final = 3_600
MS: Final = 1_000

_request = msgspec.msgpack.Decoder(CopyRequest)
_encode = msgspec.msgpack.Encoder().encode

logger = logging.getLogger(__name__)


class Copy:
    """One copy: its request, its progress, and at the end its result."""

    def __init__(self, start: CopyStart, copy_s: float) -> None:
        self.start, self.progress = start, Progress()
        self.began_s = time.monotonic()
        self.by_s = self.began_s + copy_s
        self.ended_s = 0.0
        self.placed, self.is_copied = start.path, False
        self.fault: Fault | None = None
        self.choice = LinkOffer()

    def state(self) -> CopyState:
        """Return the state for gateways."""
        start, done, fault = self.start, self.progress, self.fault
        ended_s = self.ended_s
        return CopyState(
            copy=start.copy,
            state=COPYING if not ended_s else COPIED if self.is_copied else FAILED,
            node_id=start.node_id,
            source_job_id=start.source_job_id,
            source_path=start.source_path,
            to_job_id=start.job_id,
            placed=self.placed,
            files=done.files,
            folders=done.folders,
            skipped=done.skipped,
            size_bytes=done.size_bytes,
            taken_ms=int(((ended_s or time.monotonic()) - self.began_s) * MS),
            transport=self.choice.transport,
            transport_why=self.choice.why,
            fault=fault.word if fault is not None else "",
            text=str(fault) if fault is not None else "",
        )


class Copies:
    """The copies of one agent. `answer_s` is the deadline of each answer of the serving node."""

    def __init__(
        self,
        key: LinkKey,
        members: Members,
        wall_ns: Callable[[], int],
        tenant_of: Callable[[AttemptRef], str],
        root_of: RootOf,
        answer_s: float = ANSWER_S,
        copy_s: float = COPY_S,
        choices: Choices | None = None,
    ) -> None:
        self.choices = choices
        self.key, self.members, self.wall_ns = key, members, wall_ns
        self.tenant_of, self.root_of = tenant_of, root_of
        self.answer_s, self.copy_s = answer_s, copy_s
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._copies: dict[str, Copy] = {}
        self._threads: set[threading.Thread] = set()

    async def listen(self, bus: Bus) -> None:
        """Answer gateways that start copies or look at them."""
        await bus.subscribe(ask_node(self.key.node_id, "copy"), self._on_ask, concurrent=True)

    def stop(self) -> None:
        """End all copies, remove what they wrote, and wait for their threads."""
        self._closed.set()
        for thread in list(self._threads):
            thread.join()

    async def _on_ask(self, subject: str, data: bytes) -> bytes:
        try:
            ask = _request.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return _encode(CopyState("", fault=OUTSIDE, text=f"not a CopyRequest: {error}"))
        if isinstance(ask, CopyPoll):
            return _encode(self.look(ask.copy))
        await self.members.wait_for(ask.node_id)
        return _encode(await asyncio.to_thread(self.begin, ask))

    def look(self, copy: str) -> CopyState:
        """Return the state of a copy."""
        with self._lock:
            found = self._copies.get(copy)
        if found is not None:
            return found.state()
        return CopyState(
            copy=copy,
            fault=UNKNOWN,
            text=f"node {self.key.node_id} knows no copy {copy[:64]!r}: it ended long ago, or the "
            "agent was restarted. See whether the target exists, and copy again if not",
        )

    def begin(self, start: CopyStart) -> CopyState:
        """Start a copy, unless a node or the target is unknown, or too many copies run.

        Repeating is harmless.
        """
        try:
            found = self._target(start)
            self.members.check(start.node_id)
            with self._lock:
                copy = self._copies.get(start.copy)
                if copy is not None:
                    return copy.state()
                self._make_room(start.tenant)
                copy = self._copies[start.copy] = Copy(start, self.copy_s)
                thread = threading.Thread(
                    target=self._run, args=(copy, found), name="agent-copy", daemon=True
                )
                self._threads.add(thread)
        except Fault as fault:
            return CopyState(copy=start.copy, fault=fault.word, text=str(fault))
        thread.start()
        return copy.state()

    def _target(self, start: CopyStart) -> tuple[str, bool, list[int]]:
        """Return the working directory to write to. Raises Fault."""
        ref = AttemptRef(start.job_id, start.attempt)
        tenant, found = self.tenant_of(ref), self.root_of(ref)
        if not tenant or found is None:
            raise Fault(
                PRUNED,
                f"node {self.key.node_id} has no directory of job {start.job_id}, attempt "
                f"{start.attempt}: it does not run there, or is pruned. "
                "`muster describe` shows the nodes of a job",
            )
        if tenant != start.tenant:
            text = f"job {start.job_id} does not belong to tenant {start.tenant[:64]!r}"
            raise Fault(OUTSIDE, text)
        root, fixed, ids = found
        return root, fixed, list(ids)

    def _make_room(self, tenant: str) -> None:
        """Forget old results. Raises Fault if too many copies run."""
        running = [each for each in self._copies.values() if not each.ended_s]
        own = sum(each.start.tenant == tenant for each in running)
        if len(running) >= COPIES_MAX or own >= COPIES_PER_TENANT or self._closed.is_set():
            raise Fault(
                BUSY,
                f"node {self.key.node_id} makes {len(running)} copies now, {own} of tenant "
                f"{tenant}: at most {COPIES_MAX} and {COPIES_PER_TENANT} run. Try again later",
            )
        ended = [name for name, each in self._copies.items() if each.ended_s]
        for name in ended[: max(0, len(ended) - ENDED_MAX + 1)]:
            del self._copies[name]

    def _run(self, copy: Copy, found: tuple[str, bool, list[int]]) -> None:
        """Make one copy, in a thread of its own."""
        start = copy.start
        try:
            self._fetch(copy, found)
        except Fault as fault:
            copy.fault = fault
        except (FileNotFoundError, NotADirectoryError):
            shown = start.path.decode("utf-8", "backslashreplace")
            copy.fault = Fault(
                MISSING, f"no folder for {shown!r} on node {self.key.node_id}: make it"
            )
        except (OSError, ValueError, MusterError) as error:
            copy.fault = Fault(UNWRITABLE, f"node {self.key.node_id} cannot write: {error}")
        finally:
            if copy.fault is not None:
                logger.warning("copy %s failed: %s", start.copy, copy.fault)
            copy.ended_s = time.monotonic()
            self._threads.discard(threading.current_thread())

    def _fetch(self, copy: Copy, found: tuple[str, bool, list[int]]) -> None:
        start = copy.start
        source = os.path.normpath(start.source_path or b".")
        name = start.source_job_id.encode() if source == b"." else os.path.basename(source)
        target = landing(self.key.node_id, found, start.path, name)
        access = NodeAccess(self.key, self.members.roster, self.wall_ns, start.token)
        with (
            closing(target),
            peer_at(
                access,
                start.address,
                start.node_id,
                go_on=lambda: self._check_going(copy),
                answer_s=self.answer_s,
                choices=self.choices,
                offered=start.offer,
            ) as peer,
        ):
            copy.choice = peer.choice
            Fetch(peer, target, start.copy, copy.progress).run(start.source_path)
        copy.placed = target.placed
        copy.is_copied = True

    def _check_going(self, copy: Copy) -> None:
        if self._closed.is_set():
            raise Fault(BROKEN, f"the agent of node {self.key.node_id} stopped: copy again")
        if time.monotonic() > copy.by_s:
            raise Fault(BROKEN, f"the copy took longer than {self.copy_s:g} s: copy parts of it")
