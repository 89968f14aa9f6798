"""The listener of one agent for links of other agents.

Threads accept and serve the links; the event loop only signs tokens. The number of sessions is
bounded, in all and for each node, and each holds small buffers, because requests are short. Tests:
tests/integration/test_agent_links.py, tests/attack/test_agent_links.py.
"""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec

from libs.common.errors import Refused
from libs.common.messages.file_messages import MISSING, OUTSIDE, PRUNED, FileAsk, FilePart
from libs.common.messages.link_messages import ASK_BYTES_MAX, LinkAsk, LinkGranted
from libs.common.model import AttemptRef, NodeId
from libs.common.subjects import ask_node
from libs.common.transport.bus import Bus
from libs.job.transport.errors import LinkError
from libs.job.transport.link import Link
from libs.job.transport.traffic import Options
from libs.job.transport.transports import EitherTransport
from services.node_agent.fabric.choice import SERVE, TCP, Choices
from services.node_agent.fabric.tokens import Admitted, LinkKey, NodeAccess
from services.node_agent.jobs.files import Fault
from services.node_agent.links.copies import Copies
from services.node_agent.links.grants import Grants
from services.node_agent.links.kept_weights import KeptWeights
from services.node_agent.links.members import Members
from services.node_agent.links.rates import Rates
from services.node_agent.links.serving import Session
from services.node_agent.links.shared_uploads import SharedUploads

SESSIONS_MAX: Final = 32
SESSIONS_PER_NODE: Final = 8
ACCEPT_S: Final = 0.2
GIVE_UP_S: Final = 30.0
BUFFERS: Final = Options(buffers=4, buffer_bytes=ASK_BYTES_MAX, give_up_s=GIVE_UP_S)

_ask = msgspec.msgpack.Decoder(LinkAsk)
_encode = msgspec.msgpack.Encoder().encode

logger = logging.getLogger(__name__)


class Links:
    """The links that other agents open to this one. Raises LinkError if it cannot listen.

    `tenant_of` returns the tenant of an attempt that is here; `part` reads a part of a file of it.
    `copies` fetches from other nodes; None: this node only serves. `weights` are kept weights that
    other nodes may read, `uploads` archives; None: there are none. `choices` choose RDMA or TCP;
    None: TCP.
    """

    copies: Copies | None = None
    weights: KeptWeights | None = None
    uploads: SharedUploads | None = None

    def __init__(
        self,
        key: LinkKey,
        members: Members,
        wall_ns: Callable[[], int],
        tenant_of: Callable[[AttemptRef], str],
        part: Callable[[FileAsk], FilePart],
        host: str,
        port: int = 0,
        bytes_per_s: int = 0,
        choices: Choices | None = None,
    ) -> None:
        self.choices = choices or Choices(TCP)
        self.key, self.members, self.tenant_of, self.part = key, members, tenant_of, part
        self.grants = Grants(key, wall_ns)
        self.rates = Rates(bytes_per_s)
        access = NodeAccess(key, members.roster, wall_ns, admit=self.grants.admit)
        self._listener = EitherTransport(access, BUFFERS, self.choices.port).listen(host, port)
        self.address = self._listener.address
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._sessions: Counter[NodeId] = Counter()
        self._threads: set[threading.Thread] = set()
        self._accepting = threading.Thread(target=self._accept, name="agent-links", daemon=True)
        self._accepting.start()

    async def listen(self, bus: Bus) -> None:
        """Answer gateways that ask for tokens and copies."""
        await bus.subscribe(ask_node(self.key.node_id, "link"), self._on_ask, concurrent=True)
        if self.copies is not None:
            await self.copies.listen(bus)

    async def close(self) -> None:
        """Take no more links, and end those that are open."""
        await asyncio.to_thread(self.stop)

    def stop(self) -> None:
        """End all sessions and their threads; waits for them."""
        self._closed.set()
        if self.copies is not None:
            self.copies.stop()
        self._accepting.join()
        self._listener.close()
        for thread in list(self._threads):
            thread.join()

    @property
    def sessions(self) -> int:
        """The number of sessions that are open."""
        with self._lock:
            return self._sessions.total()

    async def _on_ask(self, subject: str, data: bytes) -> bytes:
        try:
            ask = _ask.decode(data)
        except msgspec.DecodeError as error:
            return _encode(LinkGranted(fault=OUTSIDE, text=f"not a LinkAsk: {error}"))
        await self.members.wait_for(ask.dialler)
        return _encode(await asyncio.to_thread(self.grant, ask))

    def grant(self, ask: LinkAsk) -> LinkGranted:
        """Return a token, if what it is for is here, and is the tenant's."""
        try:
            if ask.model:
                self._check_weights(ask)
            elif ask.upload:
                self._check_uploads(ask)
            else:
                self._check_files(ask)
            self.members.check(ask.dialler)
            token = self.grants.sign(self.members.roster().cluster_id, ask)
        except Refused as error:
            return LinkGranted(fault=OUTSIDE, text=str(error))
        except Fault as fault:
            return LinkGranted(fault=fault.word, text=str(fault))
        return LinkGranted(token=token, address=self.address, offer=self.choices.own())

    def _check_files(self, ask: LinkAsk) -> None:
        """Raise Fault unless the attempt is here, is the tenant's, and has the path."""
        found = self.tenant_of(AttemptRef(ask.job_id, ask.attempt))
        if not found:
            raise Fault(
                PRUNED,
                f"node {self.key.node_id} has nothing of job {ask.job_id}, attempt "
                f"{ask.attempt}: it did not run there, or is pruned",
            )
        if found != ask.tenant:
            text = f"job {ask.job_id} does not belong to tenant {ask.tenant[:64]!r}"
            raise Fault(OUTSIDE, text)
        first = self.part(FileAsk(ask.job_id, ask.attempt, ask.path))
        if first.fault:
            raise Fault(first.fault, first.text)

    def _check_weights(self, ask: LinkAsk) -> None:
        if self.weights is None:
            raise Fault(MISSING, f"node {self.key.node_id} keeps no weights")
        self.weights.check(ask)

    def _check_uploads(self, ask: LinkAsk) -> None:
        if self.uploads is None:
            raise Fault(MISSING, f"node {self.key.node_id} keeps no uploads")
        self.uploads.check(ask)

    def _part_of(self, ask: LinkAsk) -> Callable[[FileAsk], FilePart]:
        """Return what reads parts of what was granted."""
        shared = self.weights if ask.model else self.uploads if ask.upload else None
        if shared is None:
            return self.part
        return lambda asked: shared.part(ask, asked.path, asked.offset)

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                link = self._listener.accept(within_s=ACCEPT_S)
            except LinkError:
                continue
            self._begin(link)

    def _begin(self, link: Link) -> None:
        """Serve a new session in a thread of its own, or close it at once."""
        admitted = Admitted.of(link.peer)
        with self._lock:
            room = (
                self._sessions.total() < SESSIONS_MAX
                and self._sessions[admitted.node_id] < SESSIONS_PER_NODE
            )
            ask = self.grants.begin(admitted.nonce) if room else None
            if ask is not None:
                self._sessions[admitted.node_id] += 1
        thread = threading.Thread(
            target=self._serve, args=(link, admitted, ask), name="agent-link", daemon=True
        )
        if ask is None:
            why = "its token is in use" if room else "too many sessions are open"
            logger.warning("closed a link of node %s: %s", admitted.node_id, why)
            link.close()
            return
        self._threads.add(thread)
        thread.start()

    def _serve(self, link: Link, admitted: Admitted, ask: LinkAsk) -> None:
        try:
            Session(link, ask, self._part_of(ask), self.rates).serve(self._closed)
        finally:
            found = link.stats()
            self.choices.ended(SERVE, found.transport, found.sent_bytes + found.received_bytes)
            link.close()
            self.grants.end(admitted.nonce)
            with self._lock:
                self._sessions[admitted.node_id] -= 1
            self._threads.discard(threading.current_thread())
