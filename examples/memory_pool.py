#!/usr/bin/env python3
"""Allocate GPU memory from the node's memory broker, and defragment it.

    muster run --gpus 1 --pool 256MiB --upload examples -- python3 memory_pool.py

The cluster counts the pool of each job, and `muster memory` shows it. The nodes need the package:
pip install 'muster-gpu[job]'. See docs/memory-on-nodes.md and docs/memory.md.
"""

from muster.memory import job_pool

MIB = 1 << 20


def main() -> None:
    """Fill the pool, free every second block, and make one large block of what is free."""
    with job_pool(0, purpose="example") as pool:
        blocks = [pool.allocate(8 * MIB) for _ in range(16)]
        for block in blocks[::2]:
            pool.free(block)
        before = pool.stats()
        moved = pool.defragment()  # blocks in use keep their addresses and their bytes
        after = pool.stats()
        large = pool.allocate(after.largest_free)
        print(f"used {before.used // MIB} MiB, free {before.free // MIB} MiB")
        print(f"largest free block {before.largest_free // MIB} MiB, then {moved // MIB} MiB moved")
        print(f"largest free block {after.largest_free // MIB} MiB, allocated at {large:#x}")


if __name__ == "__main__":
    main()
