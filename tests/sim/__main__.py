"""`python -m tests.sim`: many seeds (`--seeds 5000 --first 0 --jobs 2`), or one told in full
(`--seed 7`).

Exits with 1 at the first violation, with its seed, its rule and the last facts of its log.
"""

import argparse
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import Final

from tests.sim import faults
from tests.sim.lock_users import with_locks
from tests.sim.world import Result, simulate

CHUNK: Final = 8
LOCKS_FROM: Final = 1_000
LOCKS_EVERY: Final = 4


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=1, help="so many at once, 1 or 2")
    parser.add_argument("--seed", type=int, help="this one only, told in full")
    parser.add_argument("--calm", action="store_true", help="without any fault")
    asked = parser.parse_args()
    if asked.seed is not None:
        return tell(run_one(asked.seed, asked.calm), story=True)
    return run_many(range(asked.first, asked.first + asked.seeds), min(asked.jobs, 2), asked.calm)


def run_one(seed: int, calm: bool) -> Result:
    """Run one seed, stormy or calm. Later ones have users of locks too, every fourth."""
    if calm:
        return simulate(faults.calm(seed))
    has_locks = seed >= LOCKS_FROM and seed % LOCKS_EVERY == 0
    return simulate(with_locks(seed) if has_locks else faults.plan(seed))


def run_many(seeds: range, jobs: int, calm: bool) -> int:
    """Run all seeds until the first violation."""
    began, done, facts, counts = time.monotonic(), 0, 0, {}
    for result in _results(seeds, jobs, calm):
        done, facts = done + 1, facts + result.facts
        for name, count in result.faults.items():
            counts[name] = counts.get(name, 0) + count
        if result.found is not None:
            return tell(result, story=False)
    seconds = time.monotonic() - began
    print(
        f"{done} seeds, {facts} facts in {seconds:.1f} s: {done / seconds:.1f} seeds/s, "
        f"{facts / seconds:.0f} facts/s, no violation"
    )
    print("faults: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    return 0


def _results(seeds: range, jobs: int, calm: bool) -> Iterable[Result]:
    if jobs < 2:
        yield from (run_one(seed, calm) for seed in seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        try:
            yield from pool.map(run_one, seeds, [calm] * len(seeds), chunksize=CHUNK)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def tell(result: Result, story: bool) -> int:
    """Print what happened in a run. Return 1 if a rule was broken."""
    if story:
        for at_s, what in result.story:
            print(f"{at_s:9.3f} s  {what}")
    for line in result.tail:
        print(line)
    print(
        f"seed {result.seed}: {result.commits} commits, {result.facts} facts in "
        f"{result.virtual_s:.1f} virtual s, ends {result.ends}"
    )
    print(f"log SHA-256 {result.digest}")
    if result.found is None:
        return 0
    print(
        f"VIOLATION of {result.found.checker} at {result.found.at_s:.3f} s in seed "
        f"{result.seed}: {result.found.message}"
    )
    print(f"again: make sim SEED={result.seed}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
