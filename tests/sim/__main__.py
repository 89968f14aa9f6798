"""`python -m tests.sim`: many seeds (`--seeds 5000 --first 0 --jobs 2`), or one told in full
(`--seed 7`). `--deep` takes the deeper plans (`deep.py`); `--nightly` runs a night's share of both.

Exits with 1 at the first violation, with its seed, its rule and the last facts of its log.
"""

import argparse
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import Final

from tests.sim import deep, faults
from tests.sim.checkers import DEEP
from tests.sim.lock_users import with_locks
from tests.sim.world import Result, simulate

CHUNK: Final = 8
LOCKS_FROM: Final = 1_000
LOCKS_EVERY: Final = 4
# A night runs so many seeds of each kind of plan, other ones than the night before.
NIGHTLY_SEEDS: Final = 4_000
DAY_S: Final = 86_400
SEEDS: Final = 200


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, help=f"how many seeds ({SEEDS})")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=1, help="so many at once, 1 or 2")
    parser.add_argument("--seed", type=int, help="this one only, told in full")
    parser.add_argument("--calm", action="store_true", help="without any fault")
    parser.add_argument("--deep", action="store_true", help="deeper plans, in swarms")
    parser.add_argument("--nightly", action="store_true", help="a night's share of seeds")
    asked = parser.parse_args()
    plans = "calm" if asked.calm else "deep" if asked.deep else "stormy"
    if asked.seed is not None:
        return tell(run_one(asked.seed, plans), plans, story=True)
    if asked.nightly:
        return nightly(asked.jobs, asked.seeds or NIGHTLY_SEEDS)
    seeds = range(asked.first, asked.first + (asked.seeds or SEEDS))
    return run_many(seeds, asked.jobs, plans)


def nightly(jobs: int, count: int) -> int:
    """Run this day's seeds of deeper and of stormy plans."""
    first = int(time.time() // DAY_S) * count
    seeds = range(first, first + count)
    print(f"seeds {first} to {first + count - 1}", flush=True)
    return max(run_many(seeds, jobs, plans) for plans in ("deep", "stormy"))


def run_one(seed: int, plans: str) -> Result:
    """Run one seed of a kind of plan. Later stormy ones have users of locks too, every fourth."""
    if plans == "deep":
        return simulate(deep.plan(seed), DEEP)
    if plans == "calm":
        return simulate(faults.calm(seed))
    has_locks = seed >= LOCKS_FROM and seed % LOCKS_EVERY == 0
    return simulate(with_locks(seed) if has_locks else faults.plan(seed))


def run_many(seeds: range, jobs: int, plans: str) -> int:
    """Run all seeds until the first violation."""
    began, done, facts, counts = time.monotonic(), 0, 0, {}
    for result in _results(seeds, min(jobs, 2), plans):
        done, facts = done + 1, facts + result.facts
        for name, count in result.faults.items():
            counts[name] = counts.get(name, 0) + count
        if result.found is not None:
            return tell(result, plans, story=False)
    seconds = time.monotonic() - began
    print(
        f"{done} {plans} seeds, {facts} facts in {seconds:.1f} s: {done / seconds:.1f} seeds/s, "
        f"{facts / seconds:.0f} facts/s, no violation"
    )
    print("faults: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    return 0


def _results(seeds: range, jobs: int, plans: str) -> Iterable[Result]:
    if jobs < 2:
        yield from (run_one(seed, plans) for seed in seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        try:
            yield from pool.map(run_one, seeds, [plans] * len(seeds), chunksize=CHUNK)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def tell(result: Result, plans: str, story: bool) -> int:
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
    again = f" {plans.upper()}=1" if plans != "stormy" else ""
    print(f"again: make sim SEED={result.seed}{again}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
