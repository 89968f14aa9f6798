"""The memory of all entries: it carries changes out, in an order that survives a kill at any point.

The server reports a change to the agent before an engine can see its effect, and the end of a
layout before it frees the memory. The kernel delivers what this process sent before a kill, so the
agent never serves a layout whose memory is gone (docs/decisions/0046). Tests:
tests/integration/test_gms_crashes.py.
"""

import os
import uuid
from collections.abc import Callable, Sequence

from libs.job.device.errors import Cause, DeviceError
from services.node_agent.memory.gms import rules
from services.node_agent.memory.gms import state as s
from services.node_agent.memory.grants import Refusal
from services.node_agent.memory.physical import Physical

Tell = Callable[[s.Change, int], object]


class Store:
    """The state of all entries and the physical memory behind it.

    `tell` sends a change and a descriptor (-1: none) to the agent; `after` is called when a change
    has been applied.
    """

    def __init__(self, physical: Physical, capacity: dict[int, int], tell: Tell) -> None:
        self.physical = physical
        granularity = {device: physical.granularity(device) for device in capacity}
        self.room = rules.Room(capacity, granularity)
        self.residents = s.Residents()
        self.handles: dict[str, int] = {}
        self.tell = tell
        self.after: Callable[[s.Change], object] = lambda change: None

    def carry_out(self, changes: Sequence[s.Change]) -> None:
        """Do what each change says, and apply it."""
        for change in changes:
            if isinstance(change, s.Freed):
                self.physical.release(self.handles.pop(change.id))
            s.apply(self.residents, change)
            self.tell(change, -1)
            self.after(change)

    def restore(self, change: s.Change, take_descriptor: Callable[[], int]) -> None:
        """Apply a change of an earlier server, which the agent tells."""
        if isinstance(change, s.Kept):
            allocation = change.allocation
            device = self.residents.served[allocation.entry].entry.device
            self.handles[allocation.id] = self.physical.restore(
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
            handle = self.physical.create(entry.device, rounded)
        except DeviceError as error:
            if error.cause == Cause.HANGS:
                raise SystemExit(str(error)) from error
            full = error.cause == Cause.OUT_OF_MEMORY
            raise Refusal("full" if full else "driver", str(error)) from error
        name = str(uuid.uuid4())
        made = s.Allocation(name, entry.name, size, rounded, tag, served.next_slot)
        self.handles[name] = handle
        s.apply(self.residents, s.Kept(made))
        self.send(made)
        return made

    def send(self, allocation: s.Allocation) -> None:
        """Tell the agent about memory, with its descriptor."""
        descriptor = self.physical.export(self.handles[allocation.id])
        try:
            self.tell(s.Kept(allocation), descriptor)
        finally:
            os.close(descriptor)

    def export(self, allocation: s.Allocation, lock: s.Lock) -> int:
        """Return a descriptor for a session; the caller closes it."""
        handle = self.handles[allocation.id]
        if lock == s.Lock.RW:
            return self.physical.export(handle)
        return self.physical.export_readable(handle)
