"""The connections of engines: handshakes, waits for locks and memory, and requests.

A process may connect if it descends from the supervisor of an attempt that the agent admitted to
the entry; the kernel names the process. Connections and waits are bounded. A connection that breaks
the protocol is closed, and its lock with it. Tests: tests/integration/test_gms.py and
tests/attack/test_gms.py.
"""

import socket
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from services.node_agent.machine.poll_loop import READ, PollLoop
from services.node_agent.memory.gms import answers, rules
from services.node_agent.memory.gms import messages as m
from services.node_agent.memory.gms import state as s
from services.node_agent.memory.gms.connection import Connection, Phase
from services.node_agent.memory.gms.store import Store
from services.node_agent.memory.grants import Refusal
from services.node_agent.memory.peers import belongs, peer_of

CONNECTIONS_MAX: Final = 512
CONNECTIONS_OF_USER_MAX: Final = 256
HANDSHAKE_NS: Final = 10 * 10**9
# Memory that is full now may be free soon, for example when a killed engine is cleaned up.
MEMORY_AGAIN_NS: Final = 5 * 10**8
MEMORY_NS: Final = 30 * 10**9
TIMEOUT_MS_MAX: Final = 7 * 24 * 3600 * 1000


class Engines:
    """All connections. `changed` says that a lock may have become free."""

    def __init__(self, store: Store, loop: PollLoop) -> None:
        self.store = store
        self.loop = loop
        self.connections: dict[int, Connection] = {}
        self.waiting: dict[int, rules.Waiting] = {}
        self.timed: dict[int, Connection] = {}
        self.changed = False

    def has(self, number: int) -> bool:
        """Return whether a session has a connection to this server."""
        return number in self.connections

    def accept(self, listener: socket.socket, entry: str) -> None:
        """Accept a connection to an entry's socket."""
        try:
            stream, _ = listener.accept()
        except OSError:  # it went away again, or this process has no descriptor left
            return
        holder, uid = peer_of(stream)
        same = sum(each.uid == uid for each in self.connections.values())
        full = len(self.connections) >= CONNECTIONS_MAX or same >= CONNECTIONS_OF_USER_MAX
        if holder is None or full:
            stream.close()
            return
        stream.setblocking(False)
        self.store.residents.last_session += 1
        number = self.store.residents.last_session
        made = Connection(number, stream, entry, holder, uid, time.monotonic_ns() + HANDSHAKE_NS)
        self.connections[number] = self.timed[number] = made
        self.loop.watch(stream.fileno(), READ, lambda: self._ready(made))

    def hang_up(self, number: int) -> None:
        """Close the connection of a session that has ended."""
        made = self.connections.get(number)
        if made is not None:
            self._close(made)

    def leave(self, entry: str) -> None:
        """Close all connections to an entry that was dropped."""
        for each in [each for each in self.connections.values() if each.entry == entry]:
            self._close(each)

    # --- time ---

    def wait_ns(self, now_ns: int) -> int | None:
        """Return how long nothing happens by itself; None for ever."""
        if self.changed:
            return 0
        ends = [each.until_ns for each in self.timed.values() if each.until_ns is not None]
        return max(0, min(ends) - now_ns) if ends else None

    def settle(self, now_ns: int) -> None:
        """Grant locks that are free, then end waits whose time is over."""
        while self.changed:
            self.changed = False
            while (found := self._next_grant()) is not None:
                self._grant(*found)
        over = [
            each
            for each in self.timed.values()
            if each.until_ns is not None and each.until_ns <= now_ns
        ]
        for each in over:
            self._guarded(each, self._over)

    def _over(self, made: Connection) -> None:
        if made.phase == Phase.PENDING:
            made.phase = Phase.OPEN
            self._allocate(made)
            self._process(made)
        elif made.phase == Phase.WAITING:
            committed = s.committed(self.store.residents.served[made.entry])
            self._finish(made, m.HandshakeAnswer(False, committed))
        else:
            self._close(made)

    # --- events of a connection ---

    def _ready(self, made: Connection) -> None:
        self._guarded(made, self._move)

    def _guarded(self, made: Connection, step: Callable[[Connection], None]) -> None:
        try:
            step(made)
        except (m.BadMessage, OSError):
            self._close(made)
            return
        if made.number in self.connections:
            self.loop.watch(made.stream.fileno(), made.events(), lambda: self._ready(made))

    def _move(self, made: Connection) -> None:
        if made.leaving:
            made.flush()
        elif not made.receive():
            self._close(made)
            return
        self._process(made)

    def _process(self, made: Connection) -> None:
        """Answer whole requests as long as the peer reads the answers."""
        while made.number in self.connections and not made.leaving:
            if made.phase == Phase.CLOSING:
                self._close(made)
                return
            if made.phase not in (Phase.NEW, Phase.OPEN):
                return
            request = m.take(made.received)
            if request is None:
                return
            try:
                self._answer(made, request)
            except Refusal as refusal:
                made.send(m.Error(refusal.detail))

    def _answer(self, made: Connection, request: m.Request | m.Unknown) -> None:
        if isinstance(request, m.Unknown):
            kinds = ", ".join(sorted(m.KINDS))
            raise Refusal("request", f"{request.kind} is not supported: use one of {kinds}")
        if made.phase == Phase.NEW:
            self._first(made, request)
        elif isinstance(request, m.Allocate):
            made.asked, made.give_up_ns = request, time.monotonic_ns() + MEMORY_NS
            self._allocate(made)
        else:
            self._ask(made, request)

    def _first(self, made: Connection, request: m.Request) -> None:
        served = self.store.residents.served[made.entry]
        try:
            key = self._attempt(made, served)
            match request:
                case m.GetRuntimeState():
                    self._finish(made, answers.runtime_state(served, self._writers(made.entry)))
                case m.GetEventHistory():
                    self._finish(made, m.EventHistory(list(served.events)))
                case m.Handshake():
                    self._handshake(made, served, key, request)
                case _:
                    raise Refusal("handshake", "send handshake_request first")
        except Refusal as refusal:
            self._finish(made, m.Error(refusal.detail))

    def _attempt(self, made: Connection, served: s.Served) -> str:
        """Return the attempt that the process belongs to. Raises Refusal."""
        for admission in served.admissions.values():
            if belongs(made.holder, admission.job_dir):
                return admission.key
        raise Refusal(
            "process",
            f"process {made.holder.pid} belongs to no attempt that may use entry "
            f"{served.entry.name}: start the engine as a replica of its model",
        )

    def _handshake(
        self, made: Connection, served: s.Served, key: str, request: m.Handshake
    ) -> None:
        if request.lock_type not in rules.WANTED:
            raise Refusal(
                "lock",
                f"lock_type: {request.lock_type!r:.64} is not supported: "
                f"use one of {', '.join(rules.WANTED)}",
            )
        if request.content is not None:
            rules.check_content(served, request.content)
        # A process that connects again has given up what an earlier server had granted it.
        for session in list(served.sessions.values()):
            if session.holder == made.holder and not self.has(session.number):
                self.store.carry_out(rules.end(self.store.residents, session.number))
        until = None
        if request.timeout_ms is not None:
            timeout_ms = min(max(0, request.timeout_ms), TIMEOUT_MS_MAX)
            until = time.monotonic_ns() + timeout_ms * 10**6
        made.phase, made.until_ns = Phase.WAITING, until
        self.waiting[made.number] = rules.Waiting(
            number=made.number,
            entry=made.entry,
            wanted=request.lock_type,
            holder=made.holder,
            key=key,
            until_ns=until,
        )
        self.changed = True

    # --- locks ---

    def _writers(self, entry: str) -> int:
        waiting = self.waiting.values()
        return sum(each.entry == entry and each.wanted == "rw" for each in waiting)

    def _next_grant(self) -> tuple[rules.Waiting, Sequence[s.Change]] | None:
        return rules.next_grant(self.store.residents, list(self.waiting.values()))

    def _grant(self, waiting: rules.Waiting, changes: Sequence[s.Change]) -> None:
        made = self.connections[waiting.number]
        del self.waiting[waiting.number]
        self.store.carry_out(changes)
        self.timed.pop(made.number, None)
        made.phase, made.until_ns = Phase.OPEN, None
        self._guarded(made, self._granted)

    def _granted(self, made: Connection) -> None:
        found = s.by_session(self.store.residents, made.number)
        assert found is not None
        served, session = found
        made.send(m.HandshakeAnswer(True, s.committed(served), session.lock.value))
        self._process(made)

    # --- requests of a session ---

    def _ask(self, made: Connection, request: m.Request) -> None:
        found = s.by_session(self.store.residents, made.number)
        assert found is not None
        served, session = found
        waiting = self._writers(made.entry)
        answer = answers.answer(self.store, served, session, waiting, request)
        if answer.close:
            self._finish(made, answer.message)
        else:
            made.send(answer.message, answer.descriptor)

    def _allocate(self, made: Connection) -> None:
        """Try to allocate; memory that is full now is tried again for a while."""
        assert made.asked is not None
        now = time.monotonic_ns()
        self.timed.pop(made.number, None)
        made.until_ns = None
        try:
            self._ask(made, made.asked)
        except Refusal as refusal:
            if refusal.reason == "full" and now < made.give_up_ns:
                made.phase, made.until_ns = Phase.PENDING, now + MEMORY_AGAIN_NS
                self.timed[made.number] = made
                return
            made.send(m.Error(refusal.detail))

    # --- the end of a connection ---

    def _finish(self, made: Connection, message: msgspec.Struct) -> None:
        """Send a last message and close the connection when it has left."""
        self.waiting.pop(made.number, None)
        made.phase = Phase.CLOSING
        made.until_ns = time.monotonic_ns() + HANDSHAKE_NS
        self.timed[made.number] = made
        made.send(message)
        if not made.leaving:
            self._close(made)

    def _close(self, made: Connection) -> None:
        if self.connections.pop(made.number, None) is None:
            return
        self.timed.pop(made.number, None)
        self.waiting.pop(made.number, None)
        self.loop.unwatch(made.stream.fileno())
        made.close()
        self.changed = True
        self.store.carry_out(rules.end(self.store.residents, made.number))
