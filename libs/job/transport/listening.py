"""The listening side of links: accepts connections, and tells new links from later connections.

Tests: tests/contract/test_transport.py, tests/attack/test_transport.py.
"""

import socket
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Final

from libs.job.transport import handshake as h
from libs.job.transport.errors import Cause, LinkError, WireFault
from libs.job.transport.link import WITHIN_S, Link
from libs.job.transport.opening import Opening
from libs.job.transport.traffic import Agreed, Carrier

# Connections that may be in their handshake at once; more wait in the kernel's queue.
HANDSHAKES_MAX: Final = 32
BACKLOG: Final = 128
# Links that were opened and not accepted by the program yet.
WAITING_MAX: Final = 64
LOOK_S: Final = 0.2


class Listener:
    """Accepts peers at `address` in a thread of its own, until it is closed."""

    def __init__(self, opening: Opening, host: str, port: int) -> None:
        self._opening = opening
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._server = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError as error:
            detail = f"cannot listen at {host}:{port}: {error.strerror or error}"
            raise LinkError(Cause.ADDRESS, f"{host}:{port}", detail) from error
        self._server.settimeout(LOOK_S)
        bound = self._server.getsockname()
        self.port: int = bound[1]
        self.address = f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"
        self.refused = 0
        self.last_refusal = ""
        self._changed = threading.Condition()
        self._links: dict[str, Link] = {}
        self._waiting: deque[Link] = deque()
        self._handshakes = 0
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="muster-listen", daemon=True)
        self._thread.start()

    def accept(self, within_s: float = WITHIN_S) -> Link:
        """Return the next new link. Raises LinkError."""
        by_s = time.monotonic() + within_s
        with self._changed:
            while not self._waiting:
                left_s = by_s - time.monotonic()
                if self._closed or left_s <= 0:
                    cause = Cause.CLOSED if self._closed else Cause.STALLED
                    last = f"; the last refusal: {self.last_refusal}" if self.last_refusal else ""
                    detail = f"no peer opened a link in {within_s:g} s{last}"
                    raise LinkError(cause, f"listener {self.address}", detail)
                self._changed.wait(left_s)
            return self._waiting.popleft()

    def close(self) -> None:
        """Take no more connections. Links that were accepted live on, without reconnection."""
        with self._changed:
            self._closed = True
            waiting, self._waiting = list(self._waiting), deque()
            self._changed.notify_all()
        self._thread.join()
        self._server.close()
        for link in waiting:
            link.close()

    def __enter__(self) -> "Listener":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        while not self._closed:
            with self._changed:
                if self._handshakes >= HANDSHAKES_MAX:
                    self._changed.wait(LOOK_S)
                    continue
            try:
                stream, where = self._server.accept()
            except TimeoutError:
                continue
            except OSError:  # for example no descriptor is left: those that are open may end
                time.sleep(LOOK_S)
                continue
            with self._changed:
                self._handshakes += 1
            threading.Thread(
                target=self._answer, args=(stream, where), name="muster-accept", daemon=True
            ).start()

    def _answer(self, stream: socket.socket, where: tuple[str, int]) -> None:
        peer = f"{where[0]}:{where[1]}"
        conversation = h.Conversation(stream, peer, time.monotonic() + h.HANDSHAKE_S)
        try:
            self._shake(conversation)
        except WireFault as fault:
            with self._changed:
                self.refused += 1
                self.last_refusal = f"{peer}: {fault.detail}"
            if fault.cause not in (Cause.STALLED, Cause.BROKEN):
                with suppress(WireFault):
                    conversation.send(h.pack_refusal(fault))
            stream.close()
        finally:
            with self._changed:
                self._handshakes -= 1
                self._changed.notify_all()

    def _shake(self, conversation: h.Conversation) -> None:
        """The listener's side of the handshake. Raises WireFault."""
        theirs = conversation.take()
        peer = h.unpack_hello(theirs)
        known = self._links.get(peer.session)
        if peer.wire not in self._opening.carriers:
            served = " and ".join(self._opening.carriers)
            raise WireFault(Cause.REFUSED, f"this listener serves {served}, not {peer.wire[:16]}")
        own = self._opening.hello(peer.session, -1, peer.wire)
        mine = own.pack()
        conversation.send(mine)
        said = h.transcript(theirs, mine)
        answer = h.unpack_answer(conversation.take())
        name = h.checked(self._opening.access, "dial", said, answer.proof)
        proof = self._opening.access.prove("listen", said)
        if known is None and peer.received >= 0:
            raise WireFault(Cause.LOST, "this listener does not know the link (was it restarted?)")
        if known is None:
            agreed = self._opening.agreed(name, own, peer)
            self._begin(conversation, peer.wire, agreed, proof, answer)
        elif known.transport != peer.wire:
            raise WireFault(Cause.REFUSED, f"the link is one over {known.transport}")
        elif known.peer != name:
            raise WireFault(Cause.REFUSED, f"the link belongs to {known.peer}, not to {name}")
        else:
            self._resume(conversation, known, proof, answer)

    def _begin(
        self,
        conversation: h.Conversation,
        wire: str,
        agreed: Agreed,
        proof: bytes,
        answer: h.Answer,
    ) -> None:
        with self._changed:
            if len(self._waiting) >= WAITING_MAX or self._closed:
                raise WireFault(Cause.REFUSED, f"{WAITING_MAX} links wait to be accepted")
        carrier = self._opening.carriers[wire]()
        try:
            link = self._link(conversation, carrier, agreed, proof, answer)
        except WireFault:
            carrier.close()
            raise
        with self._changed:
            self._waiting.append(link)
            self._changed.notify_all()

    def _link(
        self,
        conversation: h.Conversation,
        carrier: Carrier,
        agreed: Agreed,
        proof: bytes,
        answer: h.Answer,
    ) -> Link:
        """Return a new link over this connection. Raises WireFault."""
        link = Link(
            agreed,
            carrier,
            self._opening.options,
            None,
            lambda: self._forget(agreed.session),
        )
        try:
            conversation.send(h.pack_answer(h.Answer(proof, 0, carrier.offer(answer.wire))))
            wire = carrier.wire(
                conversation.stream,
                answer.wire,
                link.traffic.session,
                link.traffic,
                agreed.checksum,
            )
        except WireFault:
            link.progress.stop()
            raise
        self._links[agreed.session] = link
        link.start(wire)
        return link

    def _forget(self, session: str) -> None:
        self._links.pop(session, None)

    def _resume(
        self, conversation: h.Conversation, link: Link, proof: bytes, answer: h.Answer
    ) -> None:
        received = link.progress.suspend()
        offer = link.carrier.offer(answer.wire)
        conversation.send(h.pack_answer(h.Answer(proof, received, offer)))
        wire = link.carrier.wire(
            conversation.stream,
            answer.wire,
            link.traffic.session,
            link.traffic,
            link.agreed.checksum,
        )
        link.progress.adopt(wire, answer.received)
