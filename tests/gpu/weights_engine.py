"""Stand-in for an engine in tests/gpu/test_weights.py: it speaks the GMS protocol and maps weights.

`load PATH PIECES BYTES`: takes the write lock, fills memory, publishes, ends. `map PATH`: takes a
read lock, maps everything, compares the first and last bytes of each piece, says how long that
took, and keeps the memory until it is ended.
"""

import json
import os
import signal
import sys
import time

from libs.job.device import context as public
from libs.job.device.context import Context
from libs.job.device.cuda import Cuda
from libs.job.memory.cuda_driver import CudaDriver
from tests.gms_client import Gms

MARK = 64


class Mapper:
    """Maps descriptors of the first device."""

    def __init__(self) -> None:
        vendor = public.vendor("nvidia")
        assert isinstance(vendor, Cuda)
        self.driver = CudaDriver(vendor)
        self.context = Context(vendor.devices()[0])

    def map(self, descriptor: int, size: int) -> int:
        handle = self.driver.adopt(0, descriptor, size)
        os.close(descriptor)
        address = self.driver.reserve(size)
        self.driver.map(address, size, handle, 0)
        return address


def mark(number: int, place: str) -> bytes:
    return f"piece {number} {place}".encode().ljust(MARK)


def load(path: str, pieces: int, size: int) -> None:
    gms, mapper = Gms(path), Mapper()
    gms.lock("rw")
    for number in range(pieces):
        made, _ = gms.ask("allocate_request", size=size, tag="weights")
        _, rights = gms.ask("export_allocation_request", allocation_id=made["allocation_id"])
        address = mapper.map(rights[0], made["aligned_size"])
        mapper.context.write(address, mark(number, "first"))
        mapper.context.write(address + size - MARK, mark(number, "last"))
        gms.ask(
            "metadata_put_request",
            key=f"piece.{number}",
            offset_bytes=0,
            allocation_id=made["allocation_id"],
            value=str(number).encode(),
        )
    gms.ask("commit_request")
    print(json.dumps({"loaded": pieces}), flush=True)


def map_all(path: str) -> None:
    mapper = Mapper()
    mapper.context.memory()
    began = time.perf_counter()
    gms = Gms(path)
    gms.lock("ro")
    places: dict[str, tuple[int, int]] = {}
    for each in gms.ask("list_allocations_request")[0]["allocations"]:
        _, rights = gms.ask("export_allocation_request", allocation_id=each["allocation_id"])
        size = each["aligned_size"]
        places[each["allocation_id"]] = mapper.map(rights[0], size), size
    took = time.perf_counter() - began
    same = bool(places)
    for key in gms.ask("metadata_list_request", prefix="piece.")[0]["keys"]:
        found = gms.ask("metadata_get_request", key=key)[0]
        address, size = places[found["allocation_id"]]
        number = int(found["value"])
        same &= bytes(mapper.context.read(address, MARK)) == mark(number, "first")
        last = mapper.context.read(address + size - MARK, MARK)
        same &= bytes(last) == mark(number, "last")
    print(json.dumps({"mapped": len(places), "same": same, "ms": 1e3 * took}), flush=True)
    signal.pause()


if __name__ == "__main__":
    if sys.argv[1] == "load":
        load(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        map_all(sys.argv[2])
