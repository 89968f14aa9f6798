"""Functions that the tests of this folder share.

They run a range of seeds without a violation, and compute the log's digest of one seed in another
process.
"""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.sim import faults
from tests.sim.faults import Plan
from tests.sim.result import Found, Result
from tests.sim.world import World, simulate

ROOT: Final = Path(__file__).parents[2]
CHILD_TIMEOUT_S: Final = 60


def hold(plans: Iterable[Plan], checkers: tuple[type, ...] | None = None) -> None:
    """Run each seed; fail on the first violation and name its seed."""
    for plan in plans:
        found = simulate(plan, checkers).found
        assert found is None, (
            f"seed {plan.seed}: {found.checker}: {found.message} (again: make sim SEED={plan.seed})"
        )


def stormy(first: int, count: int) -> list[Plan]:
    return [faults.plan(seed) for seed in range(first, first + count)]


def digest_in_child(seed: int, hash_seed: str) -> str:
    """Return the log's SHA-256 from a process with another hash order of sets and dicts."""
    code = f"from tests.sim import faults, world; print(world.simulate(faults.plan({seed})).digest)"
    environ = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=CHILD_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def first_found(runs: Iterable[Result | World]) -> Found:
    """Return the first violation of these runs, and print it; fail if there is none."""
    seeds = []
    for each in runs:
        seeds.append(each.plan.seed if isinstance(each, World) else each.seed)
        if found := each.found:
            print(f"\nseed {seeds[-1]}: found by {found.checker}: {found.message}"[:300])
            return found
    raise AssertionError(f"no run of the seeds {seeds} breaks a rule")
