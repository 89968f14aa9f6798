"""`python -m tests.chaos [--scenario NAME] [--jobs N] [--kills N] [--minutes M] [--seed S]
[--keep]`: five scenarios, or one of them.

`kill`: everything is killed in turn under jobs. `freeze`: an agent stands still. `agent`: agents
are killed and upgraded. `models`: everything is killed in turn while models are asked. `cluster`:
the hosts of a cluster with three servers fail in every way (`machines/`; by name only, as root).
One JSON line for each; exit code 1 when a rule was broken, and the state directory is then kept and
named.
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
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from tests.chaos import checks, freezing, lives, model_checks, models, upgrading
from tests.chaos.cluster import Chaos, healthy, running
from tests.chaos.killing import Killing
from tests.chaos.machines import scenario as machines
from tests.chaos.submitting import Wish, all_ended, mixed, submit_all

NODES: Final = 4
GPUS: Final = 8
KILL_EVERY_S: Final = 1.5
UPGRADED_GPUS: Final = 16
AGENT_ROUNDS: Final = 2
SHOWN_MAX: Final = 50
CLUSTER: Final = "cluster"


async def killed(folder: Path, count: int, kills: int, seed: int) -> dict[str, Any]:
    """Submit jobs evenly while every process is killed in turn."""
    began = time.monotonic()
    wishes = mixed(count, random.Random(f"{seed} jobs"))
    async with running(folder, NODES, GPUS) as chaos:
        submitting = submit_all(chaos, wishes, kills * KILL_EVERY_S)
        killing = Killing(chaos, random.Random(f"{seed} kills"))
        lost, _ = await asyncio.gather(submitting, killing.in_turn(kills))
        wrong, requeues = await _judged(chaos, wishes)
    return _summary(
        scenario="kill",
        jobs=count,
        kills=killing.done(),
        began=began,
        requeues=requeues,
        wrong=[*killing.absent, *wrong],
        answers_lost=lost,
    )


async def frozen(folder: Path) -> dict[str, Any]:
    """Freeze an agent in a cluster with short leases."""
    began = time.monotonic()
    async with running(folder, NODES, GPUS, **freezing.SHORT) as chaos:
        wishes = freezing.wishes(chaos)
        await submit_all(chaos, wishes, 0.0)
        frozen_ns, doomed = await freezing.freeze(chaos, len(wishes))
        wrong, requeues = await _judged(chaos, wishes)
        wrong += freezing.violations(chaos, frozen_ns, doomed)
    return _summary(
        scenario="freeze",
        jobs=len(wishes),
        kills=Counter(),
        began=began,
        requeues=requeues,
        wrong=wrong,
        doomed=len(doomed),
    )


async def upgraded(folder: Path, seed: int) -> dict[str, Any]:
    """Kill agents, upgrade them, and kill them again, under jobs that outlive all of it."""
    began, wishes = time.monotonic(), upgrading.wishes()
    await asyncio.to_thread(upgrading.install, folder, 1)
    async with running(folder, NODES, UPGRADED_GPUS, code=folder / upgrading.CODE) as chaos:
        await submit_all(chaos, wishes, 0.0)
        await upgrading.all_run(chaos)
        killing = Killing(chaos, random.Random(f"{seed} kills"))
        await upgrading.killed(chaos, killing, AGENT_ROUNDS)
        ended = await upgrading.exchanged(chaos)
        await upgrading.killed(chaos, killing, AGENT_ROUNDS)
        kills = [*killing.kills, *ended]
        wrong, requeues = await _judged(chaos, wishes)
        wrong += [*killing.absent, *upgrading.violations(upgrading.lived(chaos), kills)]
    return _summary(
        scenario="agent",
        jobs=len(wishes),
        kills=killing.done(),
        began=began,
        requeues=requeues,
        wrong=wrong,
        upgraded=len(ended),
    )


async def asked(folder: Path, minutes: float, seed: int) -> dict[str, Any]:
    """Send requests to models while every process and every replica is killed in turn."""
    began = time.monotonic()
    async with running(folder, NODES, GPUS, len(models.GATEWAYS)) as chaos:
        await models.deploy(chaos)
        asking, killing = await models.asked_and_killed(
            chaos, max(1, int(minutes * 60 / KILL_EVERY_S)), seed
        )
        ends = Counter(each.end for each in asking.outcomes)
        wrong = [
            *killing.absent,
            *model_checks.every_end_has_its_reason([*asking.outcomes, *asking.cuts], killing.kills),
            *model_checks.every_model_was_asked(asking.outcomes, models.MODELS, models.GATEWAYS),
            *model_checks.every_model_is_whole_again(
                await models.deployments(chaos), models.REPLICAS
            ),
        ]
        await models.undeploy(chaos)
        wrong += await _judged_replicas(chaos)
    more = {
        "ends": ends,
        "reasons": model_checks.reasons(asking.outcomes),
        "asked_again": asking.again,
        "streams_open": median(asking.opened),
        "longest_s": round(asking.longest_s, 1),
    }
    return _summary(
        scenario="models",
        jobs=len(asking.outcomes),
        kills=killing.done(),
        began=began,
        requeues=Counter(),
        wrong=wrong,
        **more,
    )


async def _judged_replicas(chaos: Chaos) -> list[str]:
    """Replicas are jobs: what holds for every job's life holds for theirs, and the
    chain is clean.
    """
    late = await all_ended(chaos)
    await healthy(chaos)
    await chaos.archived()
    jobs = await chaos.jobs()
    kinds = {job_id: [fact["kind"] for fact in await chaos.history(job_id)] for job_id in jobs}
    return [*late, *checks.on_lives(jobs, kinds, _lived(chaos)), *await _cluster_is_clean(chaos)]


async def _judged(chaos: Chaos, wishes: list[Wish]) -> tuple[list[str], Counter[str]]:
    """Return every violation once all is quiet, and the reasons of requeues."""
    late = await all_ended(chaos)
    await healthy(chaos)
    await chaos.archived()
    jobs = await chaos.jobs()
    facts = {job_id: await chaos.history(job_id) for job_id in jobs}
    kinds = {job_id: [fact["kind"] for fact in known] for job_id, known in facts.items()}
    expected = {wish.name: wish.expected for wish in wishes}
    wrong = [
        *late,
        *checks.on_jobs(jobs, expected, kinds, _lived(chaos)),
        *await _cluster_is_clean(chaos),
    ]
    return wrong, Counter(
        fact["reason"]
        for known in facts.values()
        for fact in known
        if fact["kind"] == "job.requeued"
    )


def _lived(chaos: Chaos) -> dict[tuple[str, int], lives.Life]:
    return lives.read(chaos.lives.read_text().splitlines())


async def _cluster_is_clean(chaos: Chaos) -> list[str]:
    """No GPU is held, and the archive and its chain hold what the log holds."""
    gpus = (await chaos.get("/v1/gpus"))["gpus"]
    code, said = await asyncio.to_thread(chaos.verify)
    return [
        *checks.every_gpu_is_free(gpus, chaos.nodes * chaos.gpus),
        *([f"audit verify ended with {code}: {said}"] if code else []),
    ]


def _summary(
    scenario: str,
    jobs: int,
    kills: Counter[str],
    began: float,
    requeues: Counter[str],
    wrong: list[str],
    **more: object,
) -> dict[str, Any]:
    seconds = round(time.monotonic() - began, 1)
    return {
        "scenario": scenario,
        "jobs": jobs,
        "kills": kills,
        "seconds": seconds,
        "requeues": requeues,
        **more,
        "violations": wrong,
    }


async def run(scenarios: Sequence[Awaitable[dict[str, Any]]]) -> bool:
    """Run the scenarios and return whether every rule held."""
    held = True
    for scenario in scenarios:
        found = await scenario
        wrong: list[str] = found["violations"]
        print(json.dumps({**found, "violations": len(wrong)}), flush=True)
        for line in wrong[:SHOWN_MAX]:
            print(f"  {line}", file=sys.stderr, flush=True)
        held = held and not wrong
    return held


def chosen(folder: Path, asked_for: argparse.Namespace) -> list[Awaitable[dict[str, Any]]]:
    known: dict[str, Callable[[], Awaitable[dict[str, Any]]]] = {
        "kill": lambda: killed(folder / "kill", asked_for.jobs, asked_for.kills, asked_for.seed),
        "freeze": lambda: frozen(folder / "freeze"),
        "agent": lambda: upgraded(folder / "agent", asked_for.seed),
        "models": lambda: asked(folder / "models", asked_for.minutes, asked_for.seed),
    }
    if asked_for.scenario == CLUSTER:
        return [machines.failing(folder / CLUSTER, asked_for.minutes, asked_for.seed)]
    return [begin() for name, begin in known.items() if asked_for.scenario in (name, "all")]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--scenario", choices=("all", "kill", "freeze", "agent", "models", CLUSTER), default="all"
    )
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--kills", type=int, default=49)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--keep", action="store_true", help="keep the state directory although every rule held"
    )
    found = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="muster-chaos-"))
    held = False
    try:
        held = asyncio.run(run(chosen(folder, found)))
    finally:
        if held and not found.keep:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"the state is kept: {folder}", file=sys.stderr)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
