"""The server of resident weights: a process with one thread that speaks GMS with engines.

Each entry has a socket of its own; a connection to it is a lock (`rules.py`). The agent has a copy
of the state and of each descriptor. The server outlives its agent, and the next server begins where
this one ended: sessions whose connection broke stay until their process connects again or ends, so
no layout is replaced under a running engine. Tests: tests/integration/test_gms_restarts.py.
"""

import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from libs.job.memory.broker_wire import BadMessage, Ended, Link
from services.node_agent.machine import processes
from services.node_agent.machine.poll_loop import READ, PollLoop
from services.node_agent.memory.broker import listening
from services.node_agent.memory.device_memory import Device, Source
from services.node_agent.memory.gms import rules
from services.node_agent.memory.gms import state as s
from services.node_agent.memory.gms.engines import Engines
from services.node_agent.memory.gms.store import Store
from services.node_agent.memory.grants import Holder, Refusal
from services.node_agent.memory.peers import peer_of

CONTROL_SOCKET: Final = "resident.sock"
# One value of metadata and what surrounds it, in base64.
CONTROL_BYTES_MAX: Final = 4 << 20
CONTROL_S: Final = 5.0
# A server without an agent ends after this time, when no engine uses its weights.
ALONE_NS: Final = 600 * 10**9
LOOK_NS: Final = 10 * 10**9


class Server:
    """The server; `run` serves until it has had no agent and no engine for a long time."""

    def __init__(self, folder: str, source: Source) -> None:
        self.store = Store(source, self._tell)
        self.store.after = self._after
        self.loop = PollLoop()
        self.engines = Engines(self.store, self.loop)
        self.listeners: dict[str, tuple[socket.socket, str]] = {}
        self.watched: dict[Holder, int] = {}
        self.agent: Link | None = None
        self.alone_since_ns = time.monotonic_ns()
        # Half of the state would be worse than none: the next agent counts all as lost.
        self.restoring = False
        self.control = listening(folder, CONTROL_SOCKET, 0o600)
        self.loop.watch(self.control.fileno(), READ, self._accept_agent)

    def run(self) -> None:
        while not self._is_over(time.monotonic_ns()):
            self.loop.run_once(self._wait_ns(time.monotonic_ns()))
            self.engines.settle(time.monotonic_ns())

    def _is_over(self, now_ns: int) -> bool:
        over = self.agent is None and now_ns >= self.alone_since_ns + ALONE_NS
        return over and not any(each.sessions for each in self.store.residents.served.values())

    def _wait_ns(self, now_ns: int) -> int | None:
        wait_ns = self.engines.wait_ns(now_ns)
        if self.agent is not None:
            return wait_ns
        alone_ns = max(LOOK_NS, self.alone_since_ns + ALONE_NS - now_ns)
        return alone_ns if wait_ns is None else min(wait_ns, alone_ns)

    # --- the agent ---

    def _accept_agent(self) -> None:
        stream, _ = self.control.accept()
        if peer_of(stream)[1] != os.geteuid():
            stream.close()
            return
        while self.agent is not None:  # obey what the last agent still said
            self.agent.stream.setblocking(False)
            self._from_agent(self.agent)
        link = self.agent = Link(stream, accepts=True, most=CONTROL_BYTES_MAX)
        stream.settimeout(CONTROL_S)
        self.loop.watch(stream.fileno(), READ, lambda: self._from_agent(link))
        for change in s.rebuild(self.store.residents):
            if isinstance(change, s.Kept):
                self.store.send(change.allocation)
            else:
                self._tell(change, -1)
        self._send({"op": "told", "pid": os.getpid()})

    def _from_agent(self, link: Link) -> None:
        try:
            link.receive()
            for message in link.messages():
                self._obey(link, message)
        except (Ended, BadMessage, OSError):
            if self.agent is link:
                self._agent_gone()

    def _obey(self, link: Link, message: dict[str, Any]) -> None:
        match message["op"]:
            case "devices":
                for device in msgspec.convert(message["devices"], list[Device]):
                    self.store.add(device)
            case "restoring":
                self.restoring = True
            case "change":
                change: s.Change = msgspec.convert(message["change"], s.Change)
                self.store.restore(change, link.take_descriptor)
            case "restored":
                self.restoring = False
                self._begin()
            case _:
                self._command(message)

    def _begin(self) -> None:
        """Serve what an earlier server served, and end what its dead processes held."""
        for served in list(self.store.residents.served.values()):
            if not served.lost:
                self._listen_again(served.entry)
            for session in list(served.sessions.values()):
                if not self._watch_holder(session.holder):
                    self._died(session.holder)
        self.store.carry_out(rules.tidied(self.store.residents))
        self._send({"op": "ready", "pid": os.getpid()})

    def _command(self, message: dict[str, Any]) -> None:
        answer = {"op": "answer", "ask": message["ask"], "reason": "", "detail": ""}
        try:
            self._carry_out(message)
        except Refusal as refusal:
            answer |= {"reason": refusal.reason, "detail": refusal.detail}
        self._send(answer)

    def _carry_out(self, message: dict[str, Any]) -> None:
        try:
            self.store.carry_out(self._changes(message))
        except OSError as error:
            entry = message["entry"]
            self.store.carry_out((s.Dropped(entry["name"]),))
            raise Refusal(
                "socket",
                f"socket: {entry['socket']} cannot be created ({error.strerror}): create its "
                "folder first",
            ) from error

    def _changes(self, message: dict[str, Any]) -> Sequence[s.Change]:
        residents = self.store.residents
        match message["op"]:
            case "serve":
                entry = msgspec.convert(message["entry"], s.Entry)
                return rules.serve(residents, self.store.room, entry)
            case "lose":
                entry = msgspec.convert(message["entry"], s.Entry)
                found = msgspec.convert(message["admissions"], list[s.Admission])
                return rules.lose(residents, self.store.room, entry, found)
            case "limit":
                return rules.limit_tenant(message["tenant"], message["device"], message["limit"])
            case "admit":
                admission = msgspec.convert(message["admission"], s.Admission)
                return rules.admit(residents, message["entry"], admission)
            case "dismiss":
                # A dismissal of no attempt is a ping, which changes nothing.
                return rules.dismiss(residents, message["key"]) if message["key"] else ()
            case _:
                return rules.drop(residents, message["entry"], message["force"])

    def _agent_gone(self) -> None:
        assert self.agent is not None
        if self.restoring:
            raise SystemExit("the agent ended before it had restored all entries")
        self.loop.unwatch(self.agent.stream.fileno())
        self.agent.close()
        self.agent = None
        self.alone_since_ns = time.monotonic_ns()

    def _send(self, message: dict[str, Any], descriptor: int = -1) -> None:
        if self.agent is not None:
            try:
                self.agent.send(message, descriptor)
            except OSError:
                self._agent_gone()

    def _tell(self, change: s.Change, descriptor: int) -> None:
        self._send({"op": "change", "change": msgspec.to_builtins(change)}, descriptor)

    # --- what follows from a change ---

    def _after(self, change: s.Change) -> None:
        match change:
            case s.Serving(entry):
                self._listen(entry)
            case s.Regained(name):
                self._listen_again(self.store.residents.served[name].entry)
            case s.Dropped(name) | s.Lost(name):
                self._unlisten(name)
            case s.Closed(number):
                self.engines.hang_up(number)
        self.engines.changed = True

    def _listen(self, entry: s.Entry) -> None:
        folder, file = os.path.split(entry.socket)
        listener = listening(folder, file, 0o666)
        self.listeners[entry.name] = (listener, entry.socket)
        self.loop.watch(listener.fileno(), READ, self._accepting(listener, entry.name))

    def _listen_again(self, entry: s.Entry) -> None:
        """Listen, if the folder still exists; the weights stay also without a socket."""
        with suppress(OSError):
            self._listen(entry)

    def _accepting(self, listener: socket.socket, name: str) -> Callable[[], None]:
        return lambda: self.engines.accept(listener, name)

    def _unlisten(self, name: str) -> None:
        if name not in self.listeners:
            return
        listener, path = self.listeners.pop(name)
        self.loop.unwatch(listener.fileno())
        listener.close()
        with suppress(OSError):
            os.unlink(path)
        self.engines.leave(name)

    # --- processes whose connection broke with an earlier server ---

    def _watch_holder(self, holder: Holder) -> bool:
        if holder in self.watched:
            return True
        with suppress(ProcessLookupError):
            pidfd = os.pidfd_open(holder.pid)
            if processes.is_living(*holder):
                self.watched[holder] = pidfd
                self.loop.watch(pidfd, READ, lambda: self._ended(holder))
                return True
            os.close(pidfd)
        return False

    def _ended(self, holder: Holder) -> None:
        pidfd = self.watched.pop(holder)
        self.loop.unwatch(pidfd)
        os.close(pidfd)
        self._died(holder)

    def _died(self, holder: Holder) -> None:
        for served in list(self.store.residents.served.values()):
            for session in list(served.sessions.values()):
                if session.holder == holder and not self.engines.has(session.number):
                    self.store.carry_out(rules.end(self.store.residents, session.number))
