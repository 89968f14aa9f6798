"""The memory broker of one node: a process with one thread that grants memory to jobs.

It answers jobs on `public/broker.sock` and the agent on `control.sock`. The agent names the devices
first. What it grants is in `Books`; the agent holds a copy of each descriptor, so that the next
broker knows what this one granted (docs/decisions/0037). A job gets bytes in answers only after the
copy is on its way to the agent. The broker outlives its agent; the next agent connects and gets
everything again. Messages, rates and connections are bounded. A connection that breaks the protocol
is closed. Tests: tests/integration/test_memory_broker.py.
"""

import hashlib
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from libs.job.memory.broker_wire import BadMessage, Ended, Link
from services.node_agent.machine import processes
from services.node_agent.machine.poll_loop import READ, PollLoop
from services.node_agent.memory import grants as g
from services.node_agent.memory.admission import gives_way
from services.node_agent.memory.device_memory import Device
from services.node_agent.memory.node_memory import Hangs, NodeMemory
from services.node_agent.memory.peers import belongs, peer_of, supervised

# The folder that jobs in containers see.
PUBLIC: Final = "public"
PASSABLE: Final = 0o711
BROKER_SOCKET: Final = f"{PUBLIC}/broker.sock"
CONTROL_SOCKET: Final = "control.sock"
# Requests of one connection: this many at once, and so many more in each second.
BURST: Final = 2_000
RATE: Final = 1_000
BACKLOG: Final = 64
# An agent that does not read for this long is taken for dead; it connects again when it works.
CONTROL_S: Final = 5.0
# A broker without an agent ends after this long, once its attempts have ended.
ORPHAN_S: Final = 300.0
# The exit code after a driver's call that did not return.
HANGS_EXIT: Final = 75


@dataclass
class Client:
    """A job's connection. It may ask nothing but `hello` until `key` is set."""

    link: Link
    holder: g.Holder
    uid: int
    tokens: float
    refilled_s: float
    key: str = ""


class Broker:
    """The broker; `run` serves until the process ends."""

    def __init__(self, folder: str) -> None:
        self.memory = NodeMemory()
        self.books = g.Books()
        self.loop = PollLoop()
        self.clients: dict[int, Client] = {}
        self.agent: Link | None = None
        self.alone_since_s = time.monotonic()
        # Half of the grants would be worse than none: the next agent counts all as lost.
        self.restoring = False
        self.watched: dict[g.Holder, int] = {}
        os.makedirs(f"{folder}/{PUBLIC}", mode=PASSABLE, exist_ok=True)
        os.chmod(f"{folder}/{PUBLIC}", PASSABLE)
        self.public = listening(folder, BROKER_SOCKET, 0o666)
        self.control = listening(folder, CONTROL_SOCKET, 0o600)
        # Jobs wait until the agent has said everything: before that their tokens are unknown.
        self.serves = False
        self.loop.watch(self.control.fileno(), READ, self._accept_agent)

    def run(self) -> None:
        """Serve. A driver that hangs ends this process at once; the agent starts the next one."""
        try:
            while not self.is_orphaned(time.monotonic()):
                self.loop.run_once(int(ORPHAN_S * 1e9))
        except Hangs as error:
            self._tell_agent({"op": "hangs", "driver": error.driver, "detail": error.detail})
            os._exit(HANGS_EXIT)

    def is_orphaned(self, now_s: float) -> bool:
        """Return whether no agent came for a long time and no attempt lives.

        Then this process ends, and all memory with it: an agent with another state directory has a
        broker of its own.
        """
        if self.agent is not None or now_s - self.alone_since_s < ORPHAN_S:
            return False
        return not any(supervised(each.job_dir) for each in self.books.attempts.values())

    # --- the agent ---

    def _accept_agent(self) -> None:
        stream, _ = self.control.accept()
        if peer_of(stream)[1] != os.geteuid():
            stream.close()
            return
        while self.agent is not None:  # obey what the last agent still said
            self.agent.stream.setblocking(False)
            self._from_agent(self.agent)
        link = self.agent = Link(stream, accepts=True)
        stream.settimeout(CONTROL_S)
        self.loop.watch(stream.fileno(), READ, lambda: self._from_agent(link))
        for attempt in self.books.attempts.values():
            self._tell_agent({"op": "attempt", "attempt": msgspec.to_builtins(attempt)})
        for grant in self.books.grants.values():
            self._keep(grant)
        self._tell_agent({"op": "ready", "pid": os.getpid()})

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
            case "device":
                device = msgspec.convert(message["device"], Device)
                why = self.memory.add(self.books, device, message["closed"])
                self._tell_agent({"op": "device", "number": device.number, "why": why})
            case "admit":
                g.admit(self.books, msgspec.convert(message["attempt"], g.Attempt))
            case "ping":
                self._tell_agent({"op": "pong"})
            case "restore":
                self._restore(link, msgspec.convert(message["grant"], g.Grant))
            case "restoring":
                self.restoring = True
            case "restored":  # all of an earlier broker's grants are here: look who lives
                self.restoring = False
                self._serve_jobs()
                for holder in g.holders(self.books):
                    self._watch_holder(holder)
            case "release":
                self._free_all(g.released(self.books, message["key"]))
                for client in [
                    each for each in self.clients.values() if each.key == message["key"]
                ]:
                    self._close(client)
                self._tell_agent({"op": "released", "key": message["key"]})

    def _restore(self, link: Link, grant: g.Grant) -> None:
        descriptor = link.take_descriptor()
        g.restore(self.books, grant)
        self.memory.restore(grant, descriptor)

    def _agent_gone(self) -> None:
        assert self.agent is not None
        if self.restoring:
            raise SystemExit("the agent ended before it had restored all grants")
        self.loop.unwatch(self.agent.stream.fileno())
        self.agent.close()
        self.agent = None
        self.alone_since_s = time.monotonic()

    def _tell_agent(self, message: dict[str, Any], descriptor: int = -1) -> None:
        if self.agent is not None:
            try:
                self.agent.send(message, descriptor)
            except OSError:
                self._agent_gone()

    def _keep(self, grant: g.Grant) -> None:
        """Send the agent a copy of the grant and of its descriptor."""
        if self.agent is not None:
            descriptor = self.memory.pieces[grant.grant].descriptor
            self._tell_agent({"op": "keep", "grant": msgspec.to_builtins(grant)}, descriptor)

    # --- jobs ---

    def _serve_jobs(self) -> None:
        if not self.serves:
            self.serves = True
            self.loop.watch(self.public.fileno(), READ, self._accept)

    def _accept(self) -> None:
        try:
            stream, _ = self.public.accept()
        except OSError:  # it went away again, or this process has no descriptor left
            return
        holder, uid = peer_of(stream)
        has_room, victim = gives_way(uid, self.clients.values())
        if holder is None or not has_room:
            stream.close()
            return
        if victim is not None:
            self._close(victim)
        stream.setblocking(False)
        client = Client(
            link=Link(stream, accepts=False),
            holder=holder,
            uid=uid,
            tokens=BURST,
            refilled_s=time.monotonic(),
        )
        self.clients[stream.fileno()] = client
        self.loop.watch(stream.fileno(), READ, lambda: self._from_job(client))

    def _from_job(self, client: Client) -> None:
        try:
            client.link.receive()
            for message in client.link.messages():
                self._answer(client, message)
        except (Ended, BadMessage, OSError):
            self._close(client)

    def _close(self, client: Client) -> None:
        number = client.link.stream.fileno()
        if self.clients.pop(number, None) is not None:
            self.loop.unwatch(number)
            client.link.close()

    def _answer(self, client: Client, message: dict[str, Any]) -> None:
        """Answer one request. Raises OSError if the job does not read its answers."""
        try:
            self._check_rate(client)
            if message.get("op") == "hello":
                self._hello(client, message)
                client.link.send({"ok": True})
            elif not client.key:
                raise g.Refusal("token", "send hello with the job's token first")
            elif message.get("op") == "grant":
                self._grant(client, message)
            elif message.get("op") == "return":
                self._return(client, _whole(message, "grant"))
            elif message.get("op") == "stats":
                client.link.send(self._stats(client.key))
            else:
                raise g.Refusal(
                    "op",
                    f"op: {message.get('op')!r:.64} is unknown: use hello, grant, return or stats",
                )
        except g.Refusal as refusal:
            client.link.send({"ok": False, "reason": refusal.reason, "detail": refusal.detail})

    def _check_rate(self, client: Client) -> None:
        now = time.monotonic()
        gained = (now - client.refilled_s) * RATE
        client.tokens, client.refilled_s = min(BURST, client.tokens + gained), now
        if client.tokens < 1:
            raise g.Refusal("rate", f"more than {RATE} requests in a second: wait and try again")
        client.tokens -= 1

    def _hello(self, client: Client, message: dict[str, Any]) -> None:
        token = message.get("token")
        digest = hashlib.sha256(token).digest() if isinstance(token, bytes) else b""
        attempt = g.by_token(self.books, digest)
        if attempt is None:
            raise g.Refusal(
                "token",
                "the token is not one of a job on this node: use the value of MUSTER_MEMORY_TOKEN",
            )
        if not belongs(client.holder, attempt.job_dir):
            raise g.Refusal(
                "process",
                f"process {client.holder.pid} does not belong to the job of"
                " this token: connect from the job's own processes",
            )
        client.key = attempt.key

    def _grant(self, client: Client, message: dict[str, Any]) -> None:
        attempt = self.books.attempts[client.key]
        size = _whole(message, "bytes")
        device = g.number_of(attempt, _whole(message, "device"))
        ask = _whole(message, "id") if "id" in message else 0
        purpose = message.get("purpose", "")
        if not isinstance(purpose, str):
            raise g.Refusal("purpose", "purpose: expected a text")
        found = g.repeated(self.books, client.key, client.holder, ask)
        grant = found or self._new(
            client,
            g.Grant(
                grant=0,
                key=client.key,
                device=device,
                bytes=size,
                purpose=purpose,
                holder=client.holder,
                ask=ask,
            ),
        )
        descriptor = self.memory.pieces[grant.grant].descriptor
        client.link.send({"ok": True, "grant": grant.grant, "bytes": grant.bytes}, descriptor)

    def _new(self, client: Client, wanted: g.Grant) -> g.Grant:
        """Create the wanted memory, or reuse a spare. Raises Refusal; then nothing exists."""
        if not self._watch_holder(client.holder):
            raise g.Refusal("process", f"process {client.holder.pid} has ended")
        size = g.check(
            books=self.books,
            key=wanted.key,
            device=wanted.device,
            size=wanted.bytes,
            purpose=wanted.purpose,
        )
        wanted = msgspec.structs.replace(wanted, bytes=size)
        grant = g.take_spare(self.books, wanted)
        if grant is None:
            numa = self.books.attempts[wanted.key].numa
            piece = self.memory.create(wanted.device, size, numa)
            grant = g.add(self.books, wanted)
            self.memory.pieces[grant.grant] = piece
        self._keep(grant)
        return grant

    def _return(self, client: Client, number: int) -> None:
        grant = g.returned(self.books, client.key, number)
        if grant is not None:
            self._free_all([grant])
        else:
            self._keep(self.books.grants[number])
        client.link.send({"ok": True})

    def _stats(self, key: str) -> dict[str, Any]:
        attempt = self.books.attempts[key]
        names = {device: g.ordinal_of(attempt, device) for device in attempt.limits}
        limits = {names[device]: size for device, size in attempt.limits.items()}
        used = {names[device]: g.used_of(self.books, key, device) for device in names}
        drivers = {names[device]: self.memory.driver_of(device) for device in names}
        count = self.books.count.get(key, 0)
        return {"ok": True, "limits": limits, "used": used, "drivers": drivers, "grants": count}

    # --- the end of grants ---

    def _free_all(self, found: Sequence[g.Grant]) -> None:
        for grant in found:
            self.memory.free(grant.grant)
            g.remove(self.books, grant.grant)
            self._tell_agent({"op": "drop", "grant": grant.grant})

    def _watch_holder(self, holder: g.Holder) -> bool:
        """Watch a process until it ends; return whether it lives. What the dead hold is freed."""
        if holder in self.watched:
            return True
        with suppress(ProcessLookupError):
            pidfd = os.pidfd_open(holder.pid)
            if processes.is_living(*holder):
                self.watched[holder] = pidfd
                self.loop.watch(pidfd, READ, lambda: self._died(holder))
                return True
            os.close(pidfd)
        self._free_all(g.died(self.books, holder))
        return False

    def _died(self, holder: g.Holder) -> None:
        pidfd = self.watched.pop(holder)
        self.loop.unwatch(pidfd)
        os.close(pidfd)
        self._free_all(g.died(self.books, holder))


def _whole(message: dict[str, Any], field: str) -> int:
    value = message.get(field)
    if not isinstance(value, int) or isinstance(value, bool):
        raise g.Refusal(field, f"{field}: expected a whole number")
    return value


def listening(folder: str, name: str, mode: int) -> socket.socket:
    """Return a listening socket in the folder; one that an earlier broker left is replaced."""
    folder, _, name = f"{folder}/{name}".rpartition("/")
    with suppress(FileNotFoundError):
        os.unlink(f"{folder}/{name}")
    listener = socket.socket(socket.AF_UNIX)
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:  # a socket path has at most 107 bytes
        listener.bind(f"/proc/self/fd/{descriptor}/{name}")
    finally:
        os.close(descriptor)
    os.chmod(f"{folder}/{name}", mode)
    listener.listen(BACKLOG)
    return listener
