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

    def take_slots(self) -> list[Slot]:
        """Return the receive buffers that are free; they are the connection's from now on."""
