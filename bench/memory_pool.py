"""Time, fragmentation and accounting of the pool: 8 GiB at 90 % load, beside a best fit in C.

The pool runs over HostDriver with real mappings, whose bytes are not touched. Operations are drawn
with a seed: a random block is freed until the next size fits under 90 %, then that size is
allocated. The C program (memory_pool.c, if `cc` is there) replays the same operations. Times
include the two readings of the clock. Sizes are 1 MiB; mixed (256 B to 1 MiB, log-uniform); and
wide (256 B to 64 MiB), where large blocks often need chunks to move.
"""

import ctypes
import gc
import itertools
import math
import random
import shutil
import subprocess
import sys
import tempfile
from array import array
from pathlib import Path
from time import perf_counter_ns
from typing import Final

from bench.cluster import QUICK, quantile, say
from libs.job.device.errors import DeviceError
from libs.job.memory.host_driver import HostDriver
from libs.job.memory.pool import Pool

POOL_BYTES: Final = 8 << 30
LOAD_BYTES: Final = POOL_BYTES * 9 // 10
OPERATIONS: Final = 60_000 if QUICK else 1_000_000
ACCOUNTED: Final = 400_000 if QUICK else 10_000_000
# Upper bounds of sizes in bytes; all begin at `SMALLEST`, except that one has no range.
LARGEST: Final = {"1 MiB": 1 << 20, "mixed": 1 << 20, "wide": 64 << 20}
SMALLEST: Final = 256
SEED: Final = 16


class Trace:
    """Operations on slots: slot to free, or -1 - slot to allocate. The first `filled` fill."""

    def __init__(self, sizes: str, count: int) -> None:
        chance = random.Random(SEED)
        self.operations = array("q")
        self.sizes = array("q")
        self.slots = 0
        held: list[tuple[int, int]] = []
        empty: list[int] = []
        used = 0
        self.filled = 0
        while len(self.operations) < count + self.filled:
            size = draw(chance, sizes)
            while used + size > LOAD_BYTES:
                self.filled = self.filled or len(self.operations)
                at = chance.randrange(len(held))
                held[at], held[-1] = held[-1], held[at]
                slot, old = held.pop()
                empty.append(slot)
                used -= old
                self.add(slot, old)
            if empty:
                slot = empty.pop()
            else:
                slot = self.slots
                self.slots += 1
            held.append((slot, size))
            used += size
            self.add(-1 - slot, size)
            if not self.filled:
                count += 1

    def add(self, operation: int, size: int) -> None:
        """Append one operation."""
        self.operations.append(operation)
        self.sizes.append(size)


def draw(chance: random.Random, sizes: str) -> int:
    """Draw a size in bytes."""
    if sizes == "1 MiB":
        return LARGEST[sizes]
    return int(2 ** chance.uniform(math.log2(SMALLEST), math.log2(LARGEST[sizes])))


def whole_pool(shared: bool) -> Pool:
    """Return a pool that holds all of its memory already."""
    pool = Pool(HostDriver(device_bytes=POOL_BYTES), limit_bytes=POOL_BYTES, shared=shared)
    pool.grow(POOL_BYTES)
    return pool


def replay(pool: Pool, trace: Trace) -> tuple[list[float], list[float], int]:
    """Microseconds of allocations and frees after the filling, and allocations without room."""
    blocks = [0] * trace.slots
    allocations: list[float] = []
    frees: list[float] = []
    failed = 0
    gc.collect()
    gc.freeze()
    for index, (operation, size) in enumerate(zip(trace.operations, trace.sizes, strict=True)):
        if operation < 0:
            begin = perf_counter_ns()
            try:
                blocks[-1 - operation] = pool.allocate(size)
            except DeviceError:
                blocks[-1 - operation] = 0
                failed += 1
            end = perf_counter_ns()
            taken = allocations
        elif block := blocks[operation]:
            begin = perf_counter_ns()
            pool.free(block)
            end = perf_counter_ns()
            taken = frees
        else:
            continue
        if index >= trace.filled:
            taken.append((end - begin) / 1000)
    return allocations, frees, failed


def peer(trace: Trace, library: ctypes.CDLL) -> tuple[list[float], list[float], int]:
    """Replay the trace through the peer in C."""
    count = len(trace.operations)
    taken = (ctypes.c_int64 * count)()
    operations = (ctypes.c_int64 * count).from_buffer(trace.operations)
    sizes = (ctypes.c_int64 * count).from_buffer(trace.sizes)
    library.replay.restype = ctypes.c_int64
    failed = library.replay(
        ctypes.c_uint64(POOL_BYTES),
        ctypes.c_int64(count),
        operations,
        sizes,
        ctypes.c_int64(trace.slots),
        taken,
    )
    timed = list(zip(trace.operations, taken, strict=True))[trace.filled :]
    allocations = [value / 1000 for operation, value in timed if operation < 0]
    return allocations, [value / 1000 for operation, value in timed if operation >= 0], failed


def compiled(folder: str) -> ctypes.CDLL | None:
    """Return the peer as a library, or None without a compiler."""
    compiler = shutil.which("cc")
    if not compiler:
        print("no C compiler here (cc): the peer is skipped", file=sys.stderr)
        return None
    target = f"{folder}/peer.so"
    source = str(Path(__file__).with_name("memory_pool.c"))
    subprocess.run(
        [compiler, "-O2", "-shared", "-fPIC", "-o", target, source], check=True, timeout=60
    )
    return ctypes.CDLL(target)


def report(
    who: str, sizes: str, measured: tuple[list[float], list[float], int], **setting: object
) -> None:
    """Print p50 and p99 of both calls, and how many allocations found no room."""
    allocations, frees, failed = measured
    for call, values in (("alloc", allocations), ("free", frees)):
        for part in (50, 99):
            value = quantile(values, part / 100)
            figure = f"{who}{call}_p{part}_us"
            say(figure, value, "us", len(values), sizes=sizes, **setting)
    say(f"{who}no_room", failed, "allocations", len(allocations), sizes=sizes, **setting)


def fragmentation() -> None:
    """Fill to 90 %, free every second block at random, and defragment."""
    for sizes in LARGEST:
        chance = random.Random(SEED)
        with whole_pool(shared=False) as pool:
            blocks = []
            used = 0
            while used + (size := draw(chance, sizes)) < LOAD_BYTES:
                blocks.append(pool.allocate(size))
                used += size
            for block in chance.sample(blocks, len(blocks) // 2):
                pool.free(block)
            before = pool.stats()
            begin = perf_counter_ns()
            moved = pool.defragment()
            taken = (perf_counter_ns() - begin) / 1e6
            after = pool.stats()
        count = len(blocks)
        say("fragmentation_before", before.fragmentation, "share", count, sizes=sizes)
        say("fragmentation_after", after.fragmentation, "share", count, sizes=sizes)
        say("defragment_ms", taken, "ms", moved >> 20, sizes=sizes, moved_mib=moved >> 20)


def accounting() -> None:
    """Count after many operations, against a dictionary of what is held."""
    chance = random.Random(SEED)
    held: list[tuple[int, int]] = []
    with whole_pool(shared=False) as pool:
        used = 0
        for _ in range(ACCOUNTED):
            if held and (chance.random() < 0.5 or used > LOAD_BYTES):
                at = chance.randrange(len(held))
                held[at], held[-1] = held[-1], held[at]
                address, size = held.pop()
                pool.free(address)
                used -= size
                continue
            address = pool.allocate(draw(chance, "mixed"))
            size = pool.size_of(address)
            held.append((address, size))
            used += size
        stats = pool.stats()
        ordered = sorted(held)
        overlapping = sum(
            low + size > high for (low, size), (high, _) in itertools.pairwise(ordered)
        )
        difference = abs(stats.used - sum(size for _, size in held))
        difference += abs(stats.used + stats.free - POOL_BYTES)
        for address, _ in held:
            pool.free(address)
        difference += pool.stats().used + POOL_BYTES - pool.stats().largest_free
    say("accounting_difference_bytes", difference, "bytes", ACCOUNTED, overlapping=overlapping)


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as folder:
        library = compiled(folder)
        for sizes in LARGEST:
            trace = Trace(sizes, OPERATIONS)
            for shared in (False, True):
                with whole_pool(shared) as pool:
                    report("", sizes, replay(pool, trace), shared=shared)
            if library:
                report("c_best_fit_", sizes, peer(trace, library))
    fragmentation()
    accounting()


if __name__ == "__main__":
    main()
