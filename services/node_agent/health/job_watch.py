"""Sample the jobs that may hang or exceed their share of a device.

The core decides what follows (`core/hangs.py`, `core/shares.py`). Signs of progress are the job's
checkpoint, its output, the bytes that its processes read and wrote, its processes, and the memory
used on its devices. If several jobs share a device, nothing shows which of them keeps it busy, so a
job is not sampled for hangs while it shares one. Tests: tests/integration/test_watched_jobs.py.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from libs.common.model import WHOLE_GPU, Gpu, GpuId
from services.node_agent.core import state as s
from services.node_agent.core.actions import SaveEvidence
from services.node_agent.core.observations import EvidenceSaved, ProgressSampled, ShareSampled
from services.node_agent.core.shares import Use
from services.node_agent.core.state import Attempt
from services.node_agent.devices.attempts import at_work
from services.node_agent.devices.sampling import Sampling
from services.node_agent.directories.protocol import JobSupervisors, OnEvent
from services.node_agent.drivers.readings import Sample
from services.node_agent.health.evidence import evidence
from services.node_agent.health.resetting import Keep
from services.node_agent.machine import processes

LOOK_S: Final = 1.0
# A device counts as busy from this utilisation on.
BUSY_PERCENT: Final = 50
EVIDENCE_S: Final = 5.0


async def watch(
    state: Callable[[], s.State],
    gpus: Callable[[], Sequence[Gpu]],
    jobs: JobSupervisors,
    sampling: Sampling,
    tell: OnEvent,
) -> None:
    """Sample the jobs every LOOK_S, for ever."""
    while True:
        await asyncio.sleep(LOOK_S)
        running = [
            attempt
            for attempt in state().attempts.values()
            if attempt.phase == s.LAUNCHED and attempt.pid
        ]
        hanging, sharing = (
            [one for one in running if one.hang is not None],
            [one for one in running if one.share is not None],
        )
        if not hanging and not sharing:
            continue
        samples, working = await sampling.now(), at_work(state())
        alone = [
            attempt
            for attempt in hanging
            if all(working.get(uuid) == [attempt] for uuid in attempt.gpus)
        ]
        sizes = {gpu.uuid: gpu.memory_bytes for gpu in gpus()}
        for seen in await asyncio.to_thread(_samples_of, jobs, alone, sharing, samples, sizes):
            tell(seen)


def _samples_of(
    jobs: JobSupervisors,
    alone: Iterable[Attempt],
    sharing: Iterable[Attempt],
    samples: Mapping[GpuId, Sample],
    sizes: Mapping[GpuId, int],
) -> list[ProgressSampled | ShareSampled]:
    """Return the samples. Reads /proc, so it must not run on the event loop."""
    hangs = [
        ProgressSampled(s.key_of(one.ref), _is_busy(one, samples), _signs(jobs, one, samples))
        for one in alone
    ]
    return [
        *hangs,
        *(ShareSampled(s.key_of(one.ref), _uses(jobs, one, samples, sizes)) for one in sharing),
    ]


def _uses(
    jobs: JobSupervisors,
    attempt: Attempt,
    samples: Mapping[GpuId, Sample],
    sizes: Mapping[GpuId, int],
) -> dict[GpuId, Use]:
    """Return the memory that the job uses, for devices that report it per process."""
    assert attempt.share is not None, "one that has a part"
    found, own = {}, frozenset(jobs.processes(attempt.ref))
    for uuid, part in attempt.share.parts.items():
        told = samples[uuid].processes if uuid in samples else ()
        used = (
            [one.memory_bytes for one in told if one.pid in own] if isinstance(told, tuple) else []
        )
        if uuid in sizes:
            found[uuid] = Use(
                sum(each for each in used if isinstance(each, int)), sizes[uuid] * part // WHOLE_GPU
            )
    return found


async def save(
    jobs: JobSupervisors, sampling: Sampling, keep: Keep, action: SaveEvidence
) -> EvidenceSaved:
    """Save the evidence of a hang. Raises nothing: a failure to save is part of the observation."""
    key, samples = s.key_of(action.ref), {uuid: sampling.latest.get(uuid) for uuid in action.gpus}
    name = f"evidence-{key}.json"
    try:
        async with asyncio.timeout(EVIDENCE_S):
            found = await asyncio.to_thread(
                lambda: evidence(key, action.reason, jobs.processes(action.ref), samples)
            )
        await keep(name, found)
    except (OSError, TimeoutError) as error:
        return EvidenceSaved(
            key, f"its evidence could not be saved: {error or 'the kernel did not answer'}"
        )
    return EvidenceSaved(key, f"the evidence is in {name} on its node")


def _is_busy(attempt: Attempt, samples: Mapping[GpuId, Sample]) -> bool:
    """Return whether a device of the job is busy. A device that does not report it
    counts as idle.
    """
    told = (samples[uuid].busy_percent for uuid in attempt.gpus if uuid in samples)
    return any(isinstance(percent, int) and percent >= BUSY_PERCENT for percent in told)


def _signs(
    jobs: JobSupervisors, attempt: Attempt, samples: Mapping[GpuId, Sample]
) -> tuple[int, ...]:
    used = (samples[uuid].memory_used_bytes for uuid in attempt.gpus if uuid in samples)
    memory = sum(each for each in used if isinstance(each, int))
    return (
        jobs.checkpointed_ns(attempt.ref),
        jobs.output_bytes(attempt.ref),
        memory,
        *_moved(jobs.processes(attempt.ref)),
    )


def _moved(pids: Iterable[int]) -> list[int]:
    return [number for pid in pids for number in (pid, processes.moved_bytes(pid))]
