"""The memory of a link across its connections: numbers, replay and credit.

Pure. Each direction numbers its frames from 1. A frame stays in `unacknowledged` until the peer
says that it received it in order. After a reconnection both sides say what they have received, and
each repeats the rest: nothing is lost, doubled or reordered.

Credit counts messages since the link began. A receiver with `buffers` buffers lets the sender send
as many messages as it has released, plus `buffers`. Tests: tests/unit/test_transport_session.py,
tests/property/test_transport_machine.py.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from libs.job.transport.frames import NUMBER_MAX, NUMBERED, Flag, Header, Kind

# Numbered frames that one side sends before the other acknowledges any.
WINDOW: Final = 64
# Frames after which the receiver acknowledges without being asked.
ACKNOWLEDGE_EVERY: Final = WINDOW // 4


class ProtocolError(ValueError):
    """The peer broke a rule of the protocol; the text says which."""


@dataclass(slots=True)
class Entry:
    """A frame to send: its fields, its payload, and what the wire notes about it.

    `payload` is any buffer; it must not change until the peer acknowledged the frame. `into` is
    where a READ puts its bytes. `refused`: the peer's card refused this access.
    """

    kind: Kind
    payload: Any = b""
    flags: Flag = Flag.NONE
    size: int = 0
    target: int = 0
    offset: int = 0
    checksum: int = 0
    number: int = 0
    into: Any = None
    refused: bool = False
    answers: bool = False
    note: Any = field(default=None, compare=False)


class Session:
    """Both directions of one link. `buffers` are this side's, `granted` is the peer's credit."""

    def __init__(self, buffers: int, granted: int) -> None:
        self.buffers = buffers
        self.granted = granted
        # What this side sends.
        self.unacknowledged: deque[Entry] = deque()
        self.sent = 0
        self.acknowledged = 0
        self.messages_sent = 0
        self.answers_waiting = 0
        self._transmitted = 0
        # What this side receives.
        self.received = 0
        self.messages_received = 0
        self.released = 0
        self.doubled = 0
        self.repeated = 0
        self._told_received = 0
        self._told_credit = buffers
        self._asked = False

    # Sending.

    def may_send(self, kind: Kind) -> bool:
        """Return whether a frame may be added now; answers always may."""
        if kind in (Kind.DATA, Kind.FAULT):
            return True
        if len(self.unacknowledged) - self.answers_waiting >= WINDOW:
            return False
        return kind is not Kind.MESSAGE or self.messages_sent < self.granted

    def add(self, entry: Entry) -> int:
        """Give the entry its number and queue it; return the number."""
        assert entry.kind in NUMBERED and self.may_send(entry.kind)
        self.sent += 1
        entry.number = self.sent
        entry.answers = entry.kind in (Kind.DATA, Kind.FAULT)
        self.answers_waiting += entry.answers
        self.messages_sent += entry.kind is Kind.MESSAGE
        if len(self.unacknowledged) + 1 >= WINDOW or self.messages_sent >= self.granted:
            entry.flags |= Flag.ASKS
        self.unacknowledged.append(entry)
        return entry.number

    def next_entry(self) -> Entry | None:
        """Return the next frame that this connection has not carried yet."""
        behind = self.sent - self._transmitted
        return self.unacknowledged[-behind] if behind else None

    def transmitted(self) -> None:
        """Note that the connection has taken the frame of `next_entry`."""
        self._transmitted += 1

    def hear(self, received: int, credit: int) -> list[Entry]:
        """Take the peer's acknowledgement and credit; return the entries that are done.

        Raises ProtocolError if it acknowledges what was not sent, or takes credit back.
        """
        if received > self._transmitted:
            raise ProtocolError(
                f"frame {received} is acknowledged, and {self._transmitted} were sent"
            )
        if credit < self.granted or credit > self.messages_sent + NUMBER_MAX // 2:
            raise ProtocolError(f"credit of {credit} messages after {self.granted}")
        self.granted = credit
        done = []
        while self.acknowledged < received:
            entry = self.unacknowledged.popleft()
            self.answers_waiting -= entry.answers
            self.acknowledged = entry.number
            done.append(entry)
        return done

    def reconnect(self, received: int) -> list[Entry]:
        """Begin a new connection to a peer that has received so many frames; the rest follows.

        Returns the entries that are done. Raises ProtocolError.
        """
        if not self.acknowledged <= received <= self._transmitted:
            raise ProtocolError(
                f"the peer says that it received {received} frames, and "
                f"{self.acknowledged} to {self._transmitted} are possible"
            )
        self.repeated += self._transmitted - received
        done = self.hear(received, self.granted)
        self._transmitted = received
        self._told_received = 0
        self._asked = True
        return done

    # Receiving.

    def is_new(self, header: Header) -> bool:
        """Return whether this numbered frame is the next one; False if it was received before.

        Raises ProtocolError for a gap, or a message without credit.
        """
        if header.number <= self.received:
            self.doubled += 1
            return False
        if header.number != self.received + 1:
            raise ProtocolError(f"frame {header.number} follows frame {self.received}")
        if header.kind is Kind.MESSAGE and self.messages_received >= self.credit:
            raise ProtocolError(f"a message beyond the credit of {self.credit}")
        return True

    def accept(self, header: Header) -> None:
        """Note that the frame of `is_new` is here whole."""
        self.received = header.number
        self.messages_received += header.kind is Kind.MESSAGE
        self._asked = self._asked or bool(header.flags & Flag.ASKS)

    def ask(self) -> None:
        """Note that the peer wants to know at once what this side has received."""
        self._asked = True

    def release(self) -> None:
        """Note that a message's buffer is free again."""
        assert self.released < self.messages_received
        self.released += 1

    @property
    def credit(self) -> int:
        """Messages that the peer may send in total."""
        return self.released + self.buffers

    def owes(self) -> bool:
        """Return whether the peer should hear now what was received and which credit it has.

        It should if it asked, if much happened, or if it may wait for credit.
        """
        news = self.credit - self._told_credit
        starved = news > 0 and self.messages_received >= self._told_credit
        many = self.received - self._told_received >= ACKNOWLEDGE_EVERY
        return self._asked or starved or many or 2 * news >= self.buffers

    def told(self) -> tuple[int, int]:
        """Return what a header says now (received, credit), and note that the peer gets it."""
        self._told_received = self.received
        self._told_credit = self.credit
        self._asked = False
        return self.received, self.credit
