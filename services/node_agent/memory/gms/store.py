"""The memory of all entries: it carries changes out, in an order that survives a kill at any point.

The server reports a change to the agent before an engine can see its effect, and the end of a
layout before it frees the memory. The kernel delivers what this process sent before a kill, so the
agent never serves a layout whose memory is gone (docs/decisions/0046). Tests:
tests/integration/test_gms_crashes.py.
"""

import logging
import os
import uuid
from collections.abc import Callable, Sequence

from libs.job.device.errors import Cause, DeviceError
from services.node_agent.memory.device_memory import Device, Piece, Source
from services.node_agent.memory.gms import rules
from services.node_agent.memory.gms import state as s
from services.node_agent.memory.grants import Refusal

Tell = Callable[[s.Change, int], object]

logger = logging.getLogger(__name__)


class Store:
    """The state of all entries and the memory behind it, which one driver creates.

    A driver that hangs ends this process: the agent starts the next one. `tell` sends a change and
    a descriptor (-1: none) to the agent; `after` is called when a change has been applied.
    """

    def __init__(self, source: Source, tell: Tell) -> None:
        self.source = source
        self.devices: dict[int, Device] = {}
        self.room = rules.Room({}, {})
        self.residents = s.Residents()
        self.pieces: dict[str, Piece] = {}
        self.tell = tell
        self.after: Callable[[s.Change], object] = lambda change: None

    def add(self, device: Device) -> None:
        """Add a device to those that entries may use. One whose driver fails stays unusable."""
        self.devices[device.number] = device
        try:
            self.room.granularity[device.number] = self.source.granularity(device)
        except DeviceError as error:
            self.room.unusable[device.number] = _said(error)
            return
        self.room.unusable.pop(device.number, None)
        self.room.capacity[device.number] = device.bytes

    def carry_out(self, changes: Sequence[s.Change]) -> None:
        """Do what each change says, and apply it."""
        for change in changes:
            if isinstance(change, s.Freed):
                self._free(self.pieces.pop(change.id))
            s.apply(self.residents, change)
            self.tell(change, -1)
            self.after(change)

    def restore(self, change: s.Change, take_descriptor: Callable[[], int]) -> None:
        """Apply a change of an earlier server, which the agent tells."""
        if isinstance(change, s.Kept):
            allocation = change.allocation
            number = self.residents.served[allocation.entry].entry.device
            device = self.devices.get(number) or Device(number, "", 0)  # it may be gone
            self.pieces[allocation.id] = self.source.restore(
                device, take_descriptor(), allocation.aligned_size
            )
        s.apply(self.residents, change)

    def allocate(self, served: s.Served, size: int, tag: str) -> s.Allocation:
        """Create memory for a writer. Raises Refusal; then nothing exists."""
        if len(tag) > rules.TEXT_CHARACTERS_MAX:
            raise Refusal("tag", f"tag: use at most {rules.TEXT_CHARACTERS_MAX} characters")
        rounded = rules.check_room(self.residents, self.room, served, size)
        entry = served.entry
        try:
            piece = self.source.create(self.devices[entry.device], rounded, ())
        except DeviceError as error:
            full = error.cause == Cause.OUT_OF_MEMORY
            raise Refusal("full" if full else "driver", _said(error)) from error
        name = str(uuid.uuid4())
        made = s.Allocation(name, entry.name, size, rounded, tag, served.next_slot)
        self.pieces[name] = piece
        s.apply(self.residents, s.Kept(made))
        self.send(made)
        return made

    def send(self, allocation: s.Allocation) -> None:
        """Tell the agent about memory, with its descriptor."""
        self.tell(s.Kept(allocation), self.pieces[allocation.id].descriptor)

    def export(self, allocation: s.Allocation, lock: s.Lock) -> int:
        """Return a descriptor for a session; the caller closes it."""
        piece = self.pieces[allocation.id]
        return os.dup(piece.descriptor) if lock == s.Lock.RW else piece.readable()

    def _free(self, piece: Piece) -> None:
        try:
            piece.free()
        except DeviceError as error:
            logger.warning("memory of an entry is given up: %s", _said(error))
            os.close(piece.descriptor)


def _said(error: DeviceError) -> str:
    """Return what a driver said; one that hangs ends this process."""
    if error.cause == Cause.HANGS:
        raise SystemExit(str(error)) from error
    return str(error)
