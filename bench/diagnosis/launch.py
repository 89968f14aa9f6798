"""Starts the ranks of one node, as torchrun does, and waits for them: one that ends ends no other.

Run as `python launch.py COUNT FAULT RANK MARK`.
"""

import os
import subprocess
import sys
from pathlib import Path

TRAIN = str(Path(__file__).parent / "train.py")


def main() -> None:
    count, *rest = sys.argv[1:]
    local_world, node = int(count), int(os.environ["MUSTER_RANK"])
    world = local_world * int(os.environ["MUSTER_WORLD_SIZE"])
    started = [
        subprocess.Popen(
            [sys.executable, TRAIN, *rest],
            env={
                **os.environ,
                "RANK": str(node * local_world + local),
                "WORLD_SIZE": str(world),
                "LOCAL_RANK": str(local),
                "LOCAL_WORLD_SIZE": str(local_world),
            },
        )
        for local in range(local_world)
    ]
    for process in started:
        process.wait()


if __name__ == "__main__":
    main()
