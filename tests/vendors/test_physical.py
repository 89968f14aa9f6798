"""Device memory behind the weight server, over libraries built from C: what a reader maps is what
the writer wrote, also when the server that created it is gone.
"""

import os

import pytest

from services.node_agent.memory.physical import VendorMemory, physical_of
from tests.memory_world import MIB
from tests.vendors.fakes import Fake


def memory_of(fake: Fake) -> VendorMemory:
    return VendorMemory(fake.kind.driver(fake.library()))


def test_memory_outlives_the_server_that_created_it(fake: Fake) -> None:
    first, second, size = memory_of(fake), memory_of(fake), 2 * MIB
    assert (first.name, first.revocable, first.granularity(0)) == (fake.name, False, size)
    handle = first.create(0, size)
    kept = first.export(handle)
    os.pwrite(kept, b"weights", 0)
    first.release(handle)
    number = second.restore(0, kept, size)
    for exported in (second.export(number), second.export_readable(number)):
        assert os.pread(exported, 7, 0) == b"weights"
        os.close(exported)
    second.release(number)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(kept)
    assert fake.uses(0) == 0


def test_an_unknown_driver_is_refused() -> None:
    with pytest.raises(ValueError, match=r"metal.*use host, cuda, hip, level_zero"):
        physical_of("metal")
