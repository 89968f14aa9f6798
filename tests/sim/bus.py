"""The simulated bus: messages that are lost, late, doubled, or cut off with their whole machine.

`Network` is what lies between, `SimBus` one process's way to it; a dead process's subscriptions end
with it. A listener handles its messages inside its own process, in the order of arrival, as
`libs.common.transport.bus_memory` does.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from libs.common import subjects
from libs.common.errors import NoListener, Unavailable
from libs.common.model import NodeId
from libs.common.transport.bus import CONCURRENT_MAX, Handler
from libs.common.transport.bus_memory import Subscription, matches
from tests.sim.loop import Process
from tests.sim.weather import Weather

HOP_S: Final = 0.0003
# A subscription is confirmed by the server: there and back.
FLUSH_S: Final = 2 * HOP_S
CONTROL: Final = "control"


def place_of(process: Process, host: str) -> str:
    """Return the side of a partition that a process is on: its machine's or, on the machines of the
    control plane, its own.
    """
    return process.name.partition("#")[0] if host == CONTROL else host


class SimSubscription(Subscription):
    """A subscription whose handler runs in the listener's process, for any sender."""

    def __init__(self, pattern: str, handler: Handler, process: Process, host: str) -> None:
        super().__init__(pattern, handler)
        self.process = process
        self.host = host
        self.place = place_of(process, host)

    def offer(self, subject: str, data: bytes, answer: asyncio.Future[bytes] | None) -> None:
        self.waiting.append((subject, data, answer))
        if self.task is None or self.task.done():
            self.task = self.process.spawn(self._drain())


class Network:
    """The subscriptions, and the machines that are cut off.

    `cut` lists machines that are cut off from all others, `apart` those that are cut off from the
    control plane alone. Both map a host to the virtual time at which it is joined again. `channels`
    are the peers' sockets by machine.
    """

    def __init__(self, weather: Weather) -> None:
        self.weather = weather
        self.subscriptions: list[SimSubscription] = []
        self.cut: dict[str, float] = {}
        self.apart: dict[str, float] = {}
        # Pairs of sender and listener between which nothing passes in this direction, until when.
        self.one_way: dict[tuple[str, str], float] = {}
        # Machines that are not heard, and those that hear nothing, until when.
        self.mute: dict[str, float] = {}
        self.deaf: dict[str, float] = {}
        # Places on the side of a partition that has no quorum, until when.
        self.minority: dict[str, float] = {}
        # Machines whose agent freezes at its next answer: for how long, and how long the machine is
        # cut off from then on.
        self.freezes: dict[str, tuple[float, float]] = {}
        self.channels: dict[str, Any] = {}
        # The machines that probe now, by pair and round (`fabric.py`).
        self.probing: dict[tuple[object, ...], dict[str, None]] = {}
        # Fabric tests that the run has still to see ended.
        self.tests_awaited: list[str] = []
        self._found: dict[str, list[SimSubscription]] = {}

    def heal(self, away: Sequence[str]) -> None:
        """Join every machine with the others again, except those that stay away."""
        self.cut = {host: until for host, until in self.cut.items() if host in away}
        self.apart = {host: until for host, until in self.apart.items() if host in away}
        self.mute = {host: until for host, until in self.mute.items() if host in away}
        self.deaf = {host: until for host, until in self.deaf.items() if host in away}

    def join(self, subscription: SimSubscription) -> None:
        self.subscriptions.append(subscription)
        self._found.clear()
        subscription.process.at_death.append(lambda: self.leave(subscription))

    def leave(self, subscription: SimSubscription) -> None:
        if subscription in self.subscriptions:
            self.subscriptions.remove(subscription)
        self._found.clear()

    def listeners(self, subject: str) -> list[SimSubscription]:
        found = self._found.get(subject)
        if found is None:
            found = self._found[subject] = [
                s for s in self.subscriptions if matches(s.pattern, subject)
            ]
        return found

    def passes(self, sender: str, listener: str, subject: str) -> bool:
        """Return whether a message gets through."""
        now = asyncio.get_running_loop().time()
        if sender != listener and (
            self.cut.get(sender, 0.0) > now or self.cut.get(listener, 0.0) > now
        ):
            return False
        if (listener == CONTROL and self.apart.get(sender, 0.0) > now) or (
            sender == CONTROL and self.apart.get(listener, 0.0) > now
        ):
            return False
        if CONTROL not in (sender, listener) and self.is_split(sender, listener):
            return False
        if self.one_way.get((sender, listener), 0.0) > now:
            return False
        if sender != listener and (
            self.mute.get(sender, 0.0) > now or self.deaf.get(listener, 0.0) > now
        ):
            return False
        return not self.weather.hit("bus_lost", subject)

    def is_split(self, one: str, other: str) -> bool:
        """Return whether a partition lies between two places."""
        now = asyncio.get_running_loop().time()
        return (self.minority.get(one, 0.0) > now) != (self.minority.get(other, 0.0) > now)

    def freeze(self, process: Process, host: str) -> None:
        """Freeze an agent whose turn it is, and cut its machine off."""
        if host in self.freezes:
            freeze_s, cut_off_s = self.freezes.pop(host)
            self.weather.tell("frozen_with_an_answer", f"{host} {freeze_s:.1f} s")
            self.cut[host] = asyncio.get_running_loop().time() + freeze_s + cut_off_s
            process.pause(freeze_s)

    def delay_s(self, subject: str) -> float:
        return (
            self.weather.between(0.0, self.weather.rates.late_max_s)
            if self.weather.hit("bus_late", subject)
            else HOP_S
        )


class SimBus:
    """See `libs.common.transport.bus.Bus`. `host` is the machine that the process runs on."""

    def __init__(self, network: Network, process: Process, host: str) -> None:
        self.network = network
        self.process = process
        self.host = host
        self.place = place_of(process, host)

    async def publish(self, subject: str, data: bytes) -> None:
        self.process.check()
        for subscription in self.network.listeners(subject):
            self._send(subscription, subject, data, None)

    async def request(self, subject: str, data: bytes, timeout_s: float) -> bytes:
        self.process.check()
        listeners = self.network.listeners(subject)
        if not listeners:
            await asyncio.sleep(HOP_S)
            raise NoListener(f"no service listens on {subject}")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        timer = loop.call_later(timeout_s, _expire, answer, subject)
        for subscription in listeners:
            self._send(subscription, subject, data, answer)
        try:
            return await answer
        finally:
            timer.cancel()

    async def subscribe(
        self,
        subject: str,
        handler: Handler,
        concurrent: bool = False,
        queue: str = "",
        places: int = CONCURRENT_MAX,
    ) -> None:
        self.process.check()
        self.network.join(
            SimSubscription(subject, self._answering(handler), self.process, self.host)
        )
        try:  # the server knows of it before this returns
            await asyncio.sleep(FLUSH_S)
        except asyncio.CancelledError:
            self.process.check()
            if not self.network.weather.hit("cancellation_lost", subject):
                raise

    def _answering(self, handler: Handler) -> Handler:
        """Drop messages to a dead or paused listener."""

        async def handle(subject: str, data: bytes) -> bytes | None:
            self.process.check()
            return await handler(subject, data)

        return handle

    def _send(
        self, to: SimSubscription, subject: str, data: bytes, answer: asyncio.Future[bytes] | None
    ) -> None:
        copies = 2 if self.network.weather.hit("bus_twice", subject) else 1
        for _ in range(copies):
            if self._passes(to, subject, self.host, to.host):
                reply = None if answer is None else self._way_back(to, subject, answer)
                to.process.deliver(
                    to.offer, subject, data, reply, delay_s=self.network.delay_s(subject)
                )

    def _passes(self, to: SimSubscription, subject: str, sender: str, listener: str) -> bool:
        """Return whether a message between this process and the subscriber gets through."""
        if self.network.is_split(self.place, to.place):
            return False
        silent_until = max(self.process.silent_until, to.process.silent_until)
        return silent_until <= asyncio.get_running_loop().time() and self.network.passes(
            sender, listener, subject
        )

    def _way_back(
        self, to: SimSubscription, subject: str, answer: asyncio.Future[bytes]
    ) -> asyncio.Future[bytes]:
        """Return the listener's own future; its result travels back as a message does."""
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def travel(done: asyncio.Future[bytes]) -> None:
            if not done.cancelled() and self._passes(to, subject, to.host, self.host):
                delay_s = self.network.delay_s(subject)
                self.process.deliver(self._hear, subject, answer, done, delay_s=delay_s)

        reply.add_done_callback(travel)
        return reply

    def _hear(
        self, subject: str, answer: asyncio.Future[bytes], said: asyncio.Future[bytes]
    ) -> None:
        came_in_time = not answer.done()
        _answer(answer, said)
        if came_in_time and subject == subjects.heartbeat(NodeId(self.host)):
            self.network.freeze(self.process, self.host)


def _answer(answer: asyncio.Future[bytes], said: asyncio.Future[bytes]) -> None:
    if answer.done():
        return
    if error := said.exception():
        answer.set_exception(error)
    else:
        answer.set_result(said.result())


def _expire(answer: asyncio.Future[bytes], subject: str) -> None:
    if not answer.done():
        answer.set_exception(Unavailable(f"no answer on {subject} in time"))
