"""`python -m bench.soak [--minutes M] [--folder DIR] [--seed S]`: run a cluster under churn and
report what each process uses.

The cluster has three NATS servers, two gateways and four agents, as processes. Before the samples,
so many jobs run that every bounded memory of ended jobs is full. The first third of the samples is
not in the slopes: caches fill up in it. Exit code 1 if descriptors or tasks of a process rise.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

import aiohttp

from bench.cluster import QUICK, Cluster, client, counts, running, say, submit
from bench.soak.chart import chart
from bench.soak.churn import GUEST, Churn
from bench.soak.sampling import BusSample, Sample, Sampling
from bench.soak.slopes import HOUR_S, rise, slope
from libs.common.life import job_life

WARM_JOBS: Final = int(os.environ.get("WARM_JOBS") or (0 if QUICK else 10_500))
WARM_CLIENTS: Final = 32
LOOK_S: Final = 1.0
MINUTE_S: Final = 60.0
# What descriptors and tasks of a process may have more at the end than in the begin: work that is
# under way.
RISE_MAX: Final = 24
REPLICAS: Final = 3


async def warm(cluster: Cluster) -> None:
    """Run WARM_JOBS jobs."""
    async with client(cluster) as session:
        left = iter(range(WARM_JOBS))

        async def submitter() -> None:
            for _ in left:
                await submit(session, "true")

        await asyncio.gather(*(submitter() for _ in range(WARM_CLIENTS)))
        while await _live(session):
            await asyncio.sleep(LOOK_S)


async def _live(session: aiohttp.ClientSession) -> int:
    found = await counts(session)
    return sum(found.get(state, 0) for state in job_life.LIVE)


def _pids(cluster: Cluster) -> dict[str, int]:
    """Return the processes that live through the whole run."""
    return {name: process.pid for name, process in cluster.processes.items() if name != GUEST}


async def soak(cluster: Cluster, folder: Path, minutes: float, seed: int) -> tuple[Sampling, Churn]:
    """Churn for that time, with samples."""
    gateways = [name for name in cluster.processes if name.startswith("gateway")]
    urls = dict(zip(gateways, cluster.urls, strict=True))
    async with client(cluster) as session:
        churn = Churn(cluster, session, seed)
        sampling = Sampling(folder, lambda: _pids(cluster), urls, cluster.monitors)
        working = [asyncio.create_task(churn.run()), asyncio.create_task(sampling.run())]
        done, _ = await asyncio.wait(working, timeout=minutes * MINUTE_S)
        for task in working:
            task.cancel()
        for task in working:
            with suppress(asyncio.CancelledError):
                await task
        assert not done
    return sampling, churn


def report(sampling: Sampling, churn: Churn, minutes: float) -> bool:
    """Print all figures; return whether descriptors and tasks are flat."""
    flat = True
    for name, samples in sampling.samples.items():
        later = samples[len(samples) // 3 :]
        for unit in ("rss_mib", "pss_mib"):
            _say_slope(name, unit, later)
        risen = rise([float(each.descriptors) for each in later])
        say(f"descriptors_rise_{name}", risen, "count", len(later), last=samples[-1].descriptors)
        say(f"threads_{name}", samples[-1].threads, "count", len(samples))
        tasks = [float(each.tasks) for each in later if each.tasks >= 0]
        if tasks:
            say(f"tasks_rise_{name}", rise(tasks), "count", len(tasks), last=int(tasks[-1]))
        flat = flat and max(risen, rise(tasks)) <= RISE_MAX
    for name, bus in sampling.bus.items():
        for field in ("streams", "consumers", "connections", "subscriptions"):
            values = [float(getattr(each, field)) for each in bus]
            say(f"{field}_rise_{name}", rise(values), "count", len(values), last=int(values[-1]))
    say("operations", sum(churn.done.values()), "count", 1, minutes=minutes, **churn.done)
    failed = {name: count for name, count in churn.failed.items() if count}
    say("unexpected_answers", sum(failed.values()), "count", 1, **failed)
    return flat


def _say_slope(name: str, unit: str, samples: list[Sample]) -> None:
    values = [float(getattr(each, unit)) for each in samples]
    found = slope([each.at_s for each in samples], values)
    if found is not None:
        say(
            f"{unit}_per_h_{name}",
            found.per_hour,
            "MiB/h",
            found.samples,
            ci95=round(found.half_width, 3),
            flat=found.is_flat,
            last=values[-1],
            hours=round((samples[-1].at_s - samples[0].at_s) / HOUR_S, 2),
        )


def draw(folder: Path, sampling: Sampling) -> None:
    """Write the pictures of memory, and of descriptors, threads and tasks."""
    memory = {
        name: {unit: [(each.at_s, getattr(each, unit)) for each in samples] for unit in MEMORY}
        for name, samples in sampling.samples.items()
    }
    (folder / "memory.svg").write_text(chart("Memory", "MiB", memory))
    numbers = {
        name: {
            field: [(each.at_s, float(getattr(each, field))) for each in samples]
            for field in COUNTED
        }
        for name, samples in sampling.samples.items()
    }
    (folder / "descriptors.svg").write_text(chart("Descriptors", "count", numbers))
    bus = {name: _curves(samples) for name, samples in sampling.bus.items()}
    (folder / "bus.svg").write_text(chart("The bus", "count", bus))


MEMORY: Final = ("rss_mib", "pss_mib")
COUNTED: Final = ("descriptors", "threads", "tasks")


def _curves(samples: list[BusSample]) -> dict[str, list[tuple[float, float]]]:
    fields = ("streams", "consumers", "connections")
    return {
        field: [(each.at_s, float(getattr(each, field))) for each in samples] for field in fields
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    found = parser.parse_args(arguments)
    folder = found.folder or Path(tempfile.mkdtemp(prefix="muster-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    with running(REPLICAS, nodes=4, gateways=2, monitored=True) as cluster:
        asyncio.run(warm(cluster))
        sampling, churn = asyncio.run(soak(cluster, folder, found.minutes, found.seed))
    flat = report(sampling, churn, found.minutes)
    draw(folder, sampling)
    print(f"samples and pictures: {folder}", file=sys.stderr)
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
