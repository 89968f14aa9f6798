"""Move one link forward: who waits on its connection, and what happens when that breaks.

At any time at most one thread waits on the connection (`turn`); others wait for what it finds. A
thread of the link itself takes over when no caller is inside, so that regions are served, frames
repeated and connections restored while the program computes. Tests:
tests/contract/test_transport.py.
"""

import os
import select
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from libs.job.transport.errors import Cause, LinkError, WireFault
from libs.job.transport.session import Entry, ProtocolError, Session

# The link's own thread takes over when no call was made for so long.
IDLE_S: Final = 0.002
TURN_S: Final = 60.0
DIAL_AGAIN_S: Final = (0.02, 0.1, 0.5, 1.0)


class Wire(Protocol):
    """One connection of a link. All methods but `wait` are called under the link's lock."""

    def pump(self) -> bool:
        """Take what has arrived, without waiting. Raises WireFault, ProtocolError."""

    def transmit(self) -> bool:
        """Send what the session has; False if some of it must wait. Raises WireFault."""

    def wait(self, wake: int, until_s: float) -> None:
        """Wait until there is something to do, the descriptor `wake` is readable, or the time."""

    def close(self) -> None:
        """End the connection."""


Connected = tuple[Wire, int]


class Progress:
    """The connection of one link, over all its reconnections.

    `dial` makes a connection and returns it with what the peer has received; it is None on the side
    that waits for the peer to dial again.
    """

    def __init__(
        self,
        peer: str,
        session: Session,
        dial: Callable[[float], Connected] | None,
        done: Callable[[list[Entry]], None],
        restarted: Callable[[], None],
        give_up_s: float,
    ) -> None:
        self.peer = peer
        self.session = session
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.wire: Wire | None = None
        self.fault: WireFault | None = None
        self.dead: LinkError | None = None
        self.reconnections = 0
        self._dial = dial
        self._done = done
        self._restarted = restarted
        self._give_up_s = give_up_s
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._waits = False
        self._background = False
        self._inside = 0
        self._left_s = time.monotonic()
        self._broken_s = self._left_s
        self._dials = 0
        self._dial_at_s = 0.0
        self._stopped = False
        self._suspends = False
        self._poked = False
        self._thread = threading.Thread(target=self._serve, name="muster-link", daemon=True)

    def start(self, wire: Wire) -> None:
        """Begin with the first connection."""
        self.wire = wire
        self._thread.start()

    def until(self, ready: Callable[[], Any], by_s: float, doing: str) -> None:
        """Move forward until `ready()`; the caller holds the lock.

        Raises LinkError: STALLED or the last fault's cause at the deadline, or why the link ended.
        """
        self._inside += 1
        try:
            while not ready():
                if self.dead is not None:
                    raise self.why()
                if time.monotonic() >= by_s:
                    raise self._late(doing)
                if not self._waits:
                    self.turn(by_s, ready)
                    continue
                if self._background:
                    self.poke()
                self.changed.wait(max(0.0, by_s - time.monotonic()))
        finally:
            self._inside -= 1
            self._left_s = time.monotonic()

    def turn(self, by_s: float, ready: Callable[[], Any] = lambda: False) -> None:
        """Take what has arrived, or wait for it; the caller holds the lock.

        It does not wait if sending made the caller `ready()`: the peer may have nothing to say.
        """
        wire = self.wire
        if self._suspends:
            self.changed.wait(IDLE_S)
            return
        if wire is None:
            self._without_wire(by_s)
            return
        try:
            moved = wire.pump()
            wire.transmit()
            if not moved and not ready() and self.wire is wire:
                self._wait(lambda: wire.wait(self._wake, by_s))
        except WireFault as fault:
            self.drop(fault)
        except ProtocolError as error:
            self.drop(WireFault(Cause.CORRUPT, f"the peer broke the protocol: {error}"))
        self.changed.notify_all()

    def why(self) -> LinkError:
        """Return a new error that says why the link ended."""
        assert self.dead is not None
        return LinkError(self.dead.cause, self.peer, self.dead.detail)

    def transmit(self) -> None:
        """Hand what is queued to the connection, if there is one."""
        try:
            if self.wire is not None and not self.wire.transmit() and self._waits:
                self.poke()
        except WireFault as fault:
            self.drop(fault)

    def poke(self) -> None:
        """Wake the thread that waits on the connection."""
        if self._wake >= 0 and not self._poked:
            self._poked = True
            os.eventfd_write(self._wake, 1)

    def drop(self, fault: WireFault) -> None:
        """Give the connection up; frames that the peer did not acknowledge stay queued."""
        if self.wire is not None:
            self._broken_s = time.monotonic()
            self.wire.close()
            self.wire = None
        self.fault = fault
        if self._waits:
            self.poke()
        self.changed.notify_all()

    def end(self, error: LinkError) -> None:
        """End the link for good; the caller holds the lock."""
        if self.dead is None:
            self.dead = error
        self.changed.notify_all()

    def suspend(self) -> int:
        """Give the connection up because the peer makes a new one; return what was received."""
        with self.lock:
            self._suspends = True
            while self._waits:
                self.poke()
                self.changed.wait(IDLE_S)
            self._suspends = False
            self.drop(WireFault(Cause.BROKEN, "the peer connected again"))
            return self.session.received

    def adopt(self, wire: Wire, received: int) -> None:
        """Go on over a new connection, to a peer that has received so many frames."""
        with self.lock:
            self._adopt(wire, received)

    def stop(self) -> None:
        """End the thread and the connection. Harmless when repeated, and before `start`."""
        with self.lock:
            if self._wake < 0:
                return
            self._stopped = True
            self.poke()
            self.changed.notify_all()
        if self._thread.ident and self._thread is not threading.current_thread():
            self._thread.join()
        with self.lock:
            while self._waits:
                self.poke()
                self.changed.wait(IDLE_S)
            if self.wire is not None:
                self.wire.close()
                self.wire = None
            os.close(self._wake)
            self._wake = -1

    def _adopt(self, wire: Wire, received: int) -> None:
        if self.dead is not None or self._stopped or self.wire is not None:
            wire.close()
            return
        try:
            self._done(self.session.reconnect(received))
        except ProtocolError as error:
            wire.close()
            self.end(LinkError(Cause.LOST, self.peer, str(error)))
            return
        self.wire = wire
        self.reconnections += 1
        self._restarted()
        self.changed.notify_all()

    def _without_wire(self, by_s: float) -> None:
        now_s = time.monotonic()
        if now_s - self._broken_s >= self._give_up_s:
            why = self.fault.detail if self.fault else "no connection"
            cause = self.fault.cause if self.fault else Cause.BROKEN
            self.end(LinkError(cause, self.peer, f"no connection for {self._give_up_s:g} s: {why}"))
        elif self._dial is None or now_s < self._dial_at_s:
            again_s = self._dial_at_s if self._dial else by_s
            until_s = min(by_s, again_s, self._broken_s + self._give_up_s)
            self.changed.wait(max(0.0, until_s - now_s))
        else:
            self._redial(self._dial, by_s)

    def _redial(self, dial: Callable[[float], Connected], by_s: float) -> None:
        self._dial_at_s = time.monotonic() + DIAL_AGAIN_S[min(self._dials, len(DIAL_AGAIN_S) - 1)]
        self._dials += 1
        found: list[Connected] = []
        try:
            self._wait(lambda: found.append(dial(by_s)))
        except WireFault as fault:
            self.drop(fault)
            if fault.cause in (Cause.LOST, Cause.REFUSED):
                self.end(LinkError(fault.cause, self.peer, fault.detail))
            return
        self._adopt(*found[0])

    def moved(self) -> None:
        """Note that a whole correct frame arrived."""
        self.fault = None
        self._dials = 0

    def _wait(self, work: Callable[[], None]) -> None:
        """Do what takes time, without the lock."""
        self._waits = True
        self.lock.release()
        try:
            work()
        finally:
            self.lock.acquire()
            self._waits = False
            if self._poked:
                self._poked = False
                os.eventfd_read(self._wake)

    def _late(self, doing: str) -> LinkError:
        if self.fault is not None:
            return LinkError(self.fault.cause, self.peer, f"{doing}: {self.fault.detail}")
        return LinkError(Cause.STALLED, self.peer, doing)

    def _serve(self) -> None:
        """The link's own thread."""
        while True:
            with self.lock:
                if self._stopped or self.dead is not None:
                    return
                quiet = time.monotonic() - self._left_s >= IDLE_S
                if quiet and not self._inside and not self._waits:
                    self._background = True
                    self.turn(time.monotonic() + TURN_S)
                    self._background = False
                    self.changed.notify_all()
                    continue
            time.sleep(IDLE_S)


def wait_on(fd: int, writes: bool, wake: int, until_s: float) -> None:
    """Wait for a descriptor or the wake descriptor, until the time (monotonic)."""
    poll = select.poll()
    poll.register(fd, select.POLLIN | (select.POLLOUT if writes else 0))
    poll.register(wake, select.POLLIN)
    poll.poll(max(0.0, until_s - time.monotonic()) * 1000)
