"""Measure how far the bill is from real use: 10,000 jobs and 100,000 requests, with kills between.

The folds, quota and the bill are the real ones, in virtual time (tests/usage_world.py). Every
figure but the counts must be 0.
"""

import sys
import time

from bench.cluster import QUICK, say
from tests.usage_world import UsageWorld, differences

JOBS = 1_000 if QUICK else 10_000
REQUESTS = 10_000 if QUICK else 100_000
SEED = 20


def main() -> int:
    """Print the figures. Return 1 if a sum is not exact."""
    began_s = time.monotonic()
    world = UsageWorld(SEED)
    world.run(JOBS, REQUESTS)
    found = differences(world)
    setting = {
        "jobs": JOBS,
        "requests": REQUESTS,
        "requests_lost_with_gateways": world.lost_requests,
        **{f"kills_of_{name}": count for name, count in sorted(world.kills.items())},
    }
    worst = max(map(abs, found.values()))
    say("usage_sums", worst, "largest difference of a sum", len(found), **setting)
    say("usage_sums_wrong", sum(map(bool, found.values())), "sums", len(found), **setting)
    say("usage_sums_time", time.monotonic() - began_s, "s", 1, **setting)
    for name, number in found.items():
        if number:
            print(f"{name}: {number}", file=sys.stderr)
    return int(worst > 0)


if __name__ == "__main__":
    sys.exit(main())
