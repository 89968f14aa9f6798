"""Two sessions over a connection that breaks anywhere: nothing is lost, doubled or reordered."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from libs.job.transport.frames import Header, Kind
from libs.job.transport.session import WINDOW, Entry, Session

BUFFERS = 4
SIDES = st.sampled_from([0, 1])


class LinkMachine(RuleBasedStateMachine):
    """Both sides, and the frames on their way. Messages carry their position as the offset."""

    def __init__(self) -> None:
        super().__init__()
        self.sides = [Session(BUFFERS, BUFFERS), Session(BUFFERS, BUFFERS)]
        self.flying: list[list[Header]] = [[], []]
        self.sent: list[list[int]] = [[], []]
        self.found: list[list[int]] = [[], []]
        self.held = [0, 0]
        self.done: list[list[int]] = [[], []]

    @rule(side=SIDES, kind=st.sampled_from([Kind.MESSAGE, Kind.WRITE]))
    def send(self, side: int, kind: Kind) -> None:
        session = self.sides[side]
        if session.may_send(kind):
            self.sent[side].append(len(self.sent[side]))
            session.add(Entry(kind, offset=self.sent[side][-1]))

    @rule(side=SIDES)
    def transmit(self, side: int) -> None:
        session = self.sides[side]
        entry = session.next_entry()
        if entry is None and not session.owes():
            return
        received, credit = session.told()
        if entry is None:
            self.flying[side].append(Header(Kind.ACK, received=received, credit=credit))
            return
        head = Header(
            entry.kind,
            entry.flags,
            number=entry.number,
            received=received,
            credit=credit,
            offset=entry.offset,
        )
        self.flying[side].append(head)
        session.transmitted()

    @precondition(lambda self: any(self.flying))
    @rule(data=st.data())
    def arrive(self, data: Any) -> None:
        side = data.draw(st.sampled_from([side for side in (0, 1) if self.flying[side]]))
        header, other = self.flying[side].pop(0), self.sides[1 - side]
        self.note(1 - side, other.hear(header.received, header.credit))
        if header.kind is Kind.ACK or not other.is_new(header):
            return
        other.accept(header)
        self.found[side].append(header.offset)
        self.held[1 - side] += header.kind is Kind.MESSAGE

    @precondition(lambda self: any(self.held))
    @rule(data=st.data())
    def release(self, data: Any) -> None:
        side = data.draw(st.sampled_from([side for side in (0, 1) if self.held[side]]))
        self.held[side] -= 1
        self.sides[side].release()

    @rule(kept=st.tuples(st.integers(0, 3), st.integers(0, 3)))
    def break_and_reconnect(self, kept: tuple[int, int]) -> None:
        """A few frames still arrive, the rest is lost with the connection."""
        for side in (0, 1):
            for _ in range(min(kept[side], len(self.flying[side]))):
                header, other = self.flying[side].pop(0), self.sides[1 - side]
                if header.kind is not Kind.ACK and other.is_new(header):
                    other.accept(header)
                    self.found[side].append(header.offset)
                    self.held[1 - side] += header.kind is Kind.MESSAGE
        self.flying = [[], []]
        received = [session.received for session in self.sides]
        for side in (0, 1):
            self.note(side, self.sides[side].reconnect(received[1 - side]))

    def note(self, side: int, entries: list[Entry]) -> None:
        self.done[side] += [entry.offset for entry in entries]

    @invariant()
    def what_arrived_is_a_beginning_of_what_was_sent(self) -> None:
        for side in (0, 1):
            assert self.found[side] == self.sent[side][: len(self.found[side])]
            assert self.done[side] == self.found[side][: len(self.done[side])]
            assert self.held[side] <= BUFFERS
            assert len(self.sides[side].unacknowledged) <= WINDOW

    def teardown(self) -> None:
        """Once the network is good, everything arrives and everything is acknowledged."""
        for _ in range(4 * (1 + max(len(each) for each in self.sent))):
            for side in (0, 1):
                self.transmit(side)
                if self.sides[side].next_entry() is None:
                    self.sides[1 - side].ask()
                while self.held[side]:
                    self.held[side] -= 1
                    self.sides[side].release()
                while self.flying[side]:
                    header, other = self.flying[side].pop(0), self.sides[1 - side]
                    self.note(1 - side, other.hear(header.received, header.credit))
                    if header.kind is not Kind.ACK and other.is_new(header):
                        other.accept(header)
                        self.found[side].append(header.offset)
                        self.held[1 - side] += header.kind is Kind.MESSAGE
        assert self.found == self.sent and self.done == self.sent


TestLinkMachine = LinkMachine.TestCase
TestLinkMachine.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
