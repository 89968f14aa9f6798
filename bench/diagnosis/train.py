"""A rank of the benchmark's job: steps of a training, with one fault in one rank.

Run as `python train.py FAULT RANK MARK`. The rank with the fault creates the file MARK just
before. It imports only the standard library, so that 32 of them start in a second.
"""

import os
import select
import signal
import sys
import threading
import time
from pathlib import Path

from ring import Ring  # type: ignore[import-not-found]  # beside this file

STEPS = 100_000
# Each step computes for a while, so that the ranks are not only in collectives.
COMPUTE_S = 0.01
SLOW_S = 4.0


class Training:
    """The steps of one rank."""

    def __init__(self, fault: str, is_faulty: bool, ring: Ring, mark: Path, at: int) -> None:
        self.fault = fault if is_faulty else ""
        self.ring, self.mark, self.at = ring, mark, at
        self.lock = threading.Lock()
        self.data, self.feed = os.pipe()

    def run(self) -> None:
        for number in range(STEPS):
            self.step(number, self.fault if number >= self.at else "")

    def step(self, number: int, fault: str) -> None:
        if fault and number == self.at:
            self.mark.touch()
        batch = self.next_batch(number, fault)
        gradient = self.compute(batch, fault)
        if fault == "link":
            self.ring.is_broken = True
        if fault == "order":
            self.ring.broadcast(gradient)
        if fault != "skip":
            self.ring.all_reduce(gradient)
        self.ring.broadcast(gradient)
        self.ring.barrier()

    def next_batch(self, number: int, fault: str) -> float:
        """Return the next batch; a slow loader waits for each of them."""
        if fault == "loader":
            select.select([self.data], [], [], SLOW_S)
        return float(number)

    def compute(self, batch: float, fault: str) -> float:
        if fault == "sleep":
            time.sleep(3_600)
        if fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if fault == "exit":
            os._exit(0)
        if fault == "lock":
            self.cached(batch)
        time.sleep(COMPUTE_S)
        return batch / 2

    def cached(self, batch: float) -> float:
        """Take a lock twice: a deadlock."""
        with self.lock, self.lock:
            return batch


def main() -> None:
    fault, faulty, mark = sys.argv[1:]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    ring = Ring(rank, world, mark)
    at = 5 + int(faulty) % 5
    Training(fault, rank == int(faulty), ring, Path(mark), at).run()


if __name__ == "__main__":
    main()
