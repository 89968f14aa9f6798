"""Device memory behind the weight server, over libraries built from C: what a reader maps is what
the writer wrote, also when the server that created it is gone.
"""

import os

import pytest

from services.node_agent.memory.device_memory import source_of
from services.node_agent.memory.gms import state as s
from services.node_agent.memory.gms.store import Store
from services.node_agent.memory.grants import Refusal
from tests.memory_world import MIB
from tests.vendors.fakes import Fake
from tests.vendors.test_broker_memory import devices_of, memory_of


def test_memory_outlives_the_server_that_created_it(fake: Fake) -> None:
    first, second, size = memory_of(fake), memory_of(fake), 2 * MIB
    device = devices_of(fake)[0]
    assert (device.driver, first.revocable, first.granularity(device)) == (fake.name, False, size)
    piece = first.create(device, size, ())
    kept = os.dup(piece.descriptor)
    os.pwrite(kept, b"weights", 0)
    piece.free()
    restored = second.restore(device, kept, size)
    for exported in (os.dup(restored.descriptor), restored.readable()):
        assert os.pread(exported, 7, 0) == b"weights"
        os.close(exported)
    restored.free()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(kept)
    assert fake.uses(0) == 0


def test_an_unknown_driver_is_refused() -> None:
    with pytest.raises(ValueError, match=r"metal.*use host, cuda, hip, level_zero"):
        source_of("metal")


class Told:
    """A store whose agent records its messages."""

    def __init__(self, fake: Fake) -> None:
        self.changes: list[s.Change] = []
        self.store = Store(memory_of(fake), lambda change, _: self.changes.append(change))
        for device in devices_of(fake):
            self.store.add(device)

    def served(self, device: int) -> s.Served:
        entry = s.Entry(f"m{device}", "t", "model", "weights", device, 8 * MIB, f"/m{device}")
        self.store.carry_out((s.Serving(entry),))
        return self.store.residents.served[entry.name]


def test_weights_lie_on_the_device_with_the_entry_s_uuid(fake: Fake) -> None:
    told = Told(fake)
    made = told.store.allocate(told.served(1), MIB, "weights")
    assert (made.aligned_size, told.changes[-1]) == (2 * MIB, s.Kept(made))
    told.store.carry_out((s.Freed("m1", made.id),))
    assert (told.store.pieces, fake.uses(0), fake.uses(1)) == ({}, 0, 0)


def test_a_device_that_the_driver_does_not_show_and_a_full_one_are_refused(fake: Fake) -> None:
    told = Told(fake)
    assert "shows no device GPU-none" in told.store.room.unusable[7]
    served = told.served(0)
    for code, reason in ((fake.kind.full, "full"), (fake.kind.lost, "driver")):
        fake.fail("create", code)
        with pytest.raises(Refusal) as found:
            told.store.allocate(served, MIB, "weights")
        assert (found.value.reason, served.bytes) == (reason, 0)


def test_memory_that_cannot_be_released_is_given_up(fake: Fake) -> None:
    told = Told(fake)
    made = told.store.allocate(told.served(0), MIB, "weights")
    descriptor = told.store.pieces[made.id].descriptor
    fake.fail("release", fake.kind.lost)
    told.store.carry_out((s.Freed("m0", made.id),))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
