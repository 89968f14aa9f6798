"""`python -m tests.chaos [--jobs N] [--kills N] [--seed S] [--keep]`: kill everything in turn under load, then freeze an agent.

One JSON line for each of the two; exit code 1 when a rule was broken, and the state directory is then kept and named.
"""

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from tests.chaos import checks, freezing, lives
from tests.chaos.cluster import Chaos, healthy, running
from tests.chaos.killing import kill_in_turn
from tests.chaos.submitting import Wish, all_ended, mixed, submit_all

NODES: Final = 4
GPUS: Final = 8
KILL_EVERY_S: Final = 1.5
SHOWN_MAX: Final = 50


async def killed(folder: Path, count: int, kills: int, seed: int) -> dict[str, Any]:
    """Jobs come evenly while everything is killed in turn."""
    began = time.monotonic()
    wishes = mixed(count, random.Random(f"{seed} jobs"))
    async with running(folder, NODES, GPUS) as chaos:
        submitting = submit_all(chaos, wishes, kills * KILL_EVERY_S)
        killing = kill_in_turn(chaos, kills, random.Random(f"{seed} kills"))
        lost, (done, absent) = await asyncio.gather(submitting, killing)
        wrong, requeues = await _judged(chaos, wishes)
    return _summary("kill", count, done, began, requeues, [*absent, *wrong], answers_lost=lost)


async def frozen(folder: Path) -> dict[str, Any]:
    """An agent that stands still, in a cluster with short leases."""
    began = time.monotonic()
    async with running(folder, NODES, GPUS, **freezing.SHORT) as chaos:
        wishes = freezing.wishes(chaos)
        await submit_all(chaos, wishes, 0.0)
        frozen_ns, doomed = await freezing.freeze(chaos, len(wishes))
        wrong, requeues = await _judged(chaos, wishes)
        wrong += freezing.violations(chaos, frozen_ns, doomed)
    return _summary("freeze", len(wishes), Counter(), began, requeues, wrong, doomed=len(doomed))


async def _judged(chaos: Chaos, wishes: list[Wish]) -> tuple[list[str], Counter[str]]:
    """Everything that is wrong once all is quiet, and why attempts were begun again."""
    late = await all_ended(chaos)
    await healthy(chaos)
    await chaos.archived()
    jobs = await chaos.jobs()
    facts = {job_id: await chaos.history(job_id) for job_id in jobs}
    kinds = {job_id: [fact["kind"] for fact in known] for job_id, known in facts.items()}
    lived = lives.read(chaos.lives.read_text().splitlines())
    gpus = (await chaos.get("/v1/gpus"))["gpus"]
    code, said = await asyncio.to_thread(chaos.verify)
    wrong = [
        *late,
        *checks.on_jobs(jobs, {wish.name: wish.expected for wish in wishes}, kinds, lived),
        *checks.every_gpu_is_free(gpus, chaos.nodes * chaos.gpus),
        *([f"audit verify ended with {code}: {said}"] if code else []),
    ]
    return wrong, Counter(fact["reason"] for known in facts.values() for fact in known if fact["kind"] == "job.requeued")


def _summary(
    scenario: str, jobs: int, kills: Counter[str], began: float, requeues: Counter[str], wrong: list[str], **more: int
) -> dict[str, Any]:
    seconds = round(time.monotonic() - began, 1)
    return {"scenario": scenario, "jobs": jobs, "kills": kills, "seconds": seconds, "requeues": requeues, **more, "violations": wrong}


async def both(folder: Path, jobs: int, kills: int, seed: int) -> bool:
    """Whether every rule held."""
    held = True
    for scenario in (killed(folder / "kill", jobs, kills, seed), frozen(folder / "freeze")):
        found = await scenario
        wrong: list[str] = found["violations"]
        print(json.dumps({**found, "violations": len(wrong)}), flush=True)
        for line in wrong[:SHOWN_MAX]:
            print(f"  {line}", file=sys.stderr, flush=True)
        held = held and not wrong
    return held


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--kills", type=int, default=49)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="keep the state directory although every rule held")
    found = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="muster-chaos-"))
    held = False
    try:
        held = asyncio.run(both(folder, found.jobs, found.kills, found.seed))
    finally:
        if held and not found.keep:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"the state is kept: {folder}", file=sys.stderr)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
