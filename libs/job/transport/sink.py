"""The interface of a link that its connections use."""

from typing import Protocol

from libs.job.transport.frames import Header
from libs.job.transport.memory import Slot
from libs.job.transport.session import Entry


class Sink(Protocol):
    """The link, as its connection sees it."""

    def header(self, entry: Entry) -> Header:
        """Return the header of a frame, with what was received so far."""

    def control(self) -> Header | None:
        """Return the header of a frame without number that must go out now, if there is one."""

    def place(self, header: Header) -> memoryview:
        """Return where the payload belongs. Raises WireFault, ProtocolError."""

    def arrived(self, header: Header, payload: memoryview, slot: Slot | None = None) -> bool:
        """Take a whole frame whose checksum is right; return whether the link keeps the slot.

        Raises WireFault, ProtocolError.
        """

    def check(self, header: Header) -> None:
        """Check a frame that has no place to choose. Raises ProtocolError."""

    def read_done(self, number: int) -> None:
        """Note that the card has carried out the READ with this number."""

    def access_refused(self, entry: Entry, why: str) -> None:
        """Note that the peer's card refused a read or write, which is not repeated."""

    def put_slot(self, slot: Slot) -> None:
        """Take back a receive buffer that holds no message."""

    def take_slots(self) -> list[Slot]:
        """Return the receive buffers that are free; they are the connection's from now on."""
