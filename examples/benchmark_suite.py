#!/usr/bin/env python3
"""Measure your own cluster as a user sees it: latency of a job, jobs in a second, a gang's start.

    pip install 'muster-gpu[client]'
    examples/benchmark_suite.py --jobs 50 --nodes 2

The jobs do nothing, so the figures show Muster and the machines' processes. Everything inside the
cluster is measured by `make bench` (docs/claims.md).
"""

import argparse
import statistics
import time
from collections.abc import Callable

import muster


def main() -> None:
    """Print one line for each measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20, help="of each measurement")
    parser.add_argument("--nodes", type=int, default=2, help="of a gang")
    asked = parser.parse_args()
    with muster.Client() as client:
        one = {"gpus": 1, "workdir": "/"}
        show("submit, answered", times(asked.jobs, lambda: client.jobs.submit("true", **one)))
        show("submit to ended", times(asked.jobs, lambda: client.jobs.submit("true", **one).wait()))
        show(
            f"gang of {asked.nodes} nodes, submit to ended",
            times(asked.jobs, lambda: client.jobs.submit("true", nodes=asked.nodes, **one).wait()),
        )
        began = time.monotonic()
        client.jobs.submit("true", array=f"1-{asked.jobs}", **one).wait()
        print(f"{'array':36} {asked.jobs / (time.monotonic() - began):8.1f} jobs/s")
        show(
            "list 100 jobs", times(asked.jobs, lambda: list(client.jobs.list(all=True, limit=100)))
        )


def times(count: int, call: Callable[[], object]) -> list[float]:
    """Return how many milliseconds each of `count` calls took."""
    found = []
    for _ in range(count):
        began = time.monotonic()
        call()
        found.append((time.monotonic() - began) * 1000)
    return sorted(found)


def show(what: str, taken: list[float]) -> None:
    """Print the median and the 99th percentile."""
    last = taken[min(len(taken) - 1, int(len(taken) * 0.99))]
    print(f"{what:36} p50 {statistics.median(taken):8.1f} ms   p99 {last:8.1f} ms")


if __name__ == "__main__":
    main()
