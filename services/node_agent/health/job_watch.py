"""Looks at the jobs that are to be watched: whether they hang. Beside the core, which is told what was seen and decides (`hangs.py`).

Signs of progress of a job: its checkpoint's word, its output, the bytes that its processes have read and written, which processes it
has, and the memory that is used on its devices. Whether a device is busy for one of several jobs cannot be told, so a job that shares
one is not looked at meanwhile. Tests: tests/integration/test_hanging_jobs.py.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from libs.common.model import GpuId
from services.node_agent import state as s
from services.node_agent.actions import SaveEvidence
from services.node_agent.drivers.readings import Sample
from services.node_agent.health.evidence import evidence
from services.node_agent.health.resetting import Keep
from services.node_agent.holders import at_work
from services.node_agent.observations import EvidenceSaved, JobLooked
from services.node_agent.sampling import Sampling
from services.node_agent.state import Attempt
from services.node_agent.supervision import processes
from services.node_agent.supervision_protocol import JobSupervisors, OnEvent

LOOK_S: Final = 1.0
# A device works that did so for this part of the time.
BUSY_PERCENT: Final = 50
EVIDENCE_S: Final = 5.0


async def watch(state: Callable[[], s.State], jobs: JobSupervisors, sampling: Sampling, tell: OnEvent) -> None:
    """For ever."""
    while True:
        await asyncio.sleep(LOOK_S)
        watched = [
            attempt for attempt in state().attempts.values() if attempt.hang is not None and attempt.phase == s.LAUNCHED and attempt.pid
        ]
        if not watched:
            continue
        samples, working = await sampling.now(), at_work(state())
        alone = [attempt for attempt in watched if all(working.get(uuid) == [attempt] for uuid in attempt.gpus)]
        signs = await asyncio.to_thread(_all_signs, jobs, alone, samples)
        for attempt, seen in zip(alone, signs, strict=True):
            tell(JobLooked(s.key_of(attempt.ref), _is_busy(attempt, samples), seen))


async def save(jobs: JobSupervisors, sampling: Sampling, keep: Keep, action: SaveEvidence) -> EvidenceSaved:
    """Raises nothing: that it cannot be kept is the answer."""
    key, samples = s.key_of(action.ref), {uuid: sampling.latest.get(uuid) for uuid in action.gpus}
    name = f"evidence-{key}.json"
    try:
        async with asyncio.timeout(EVIDENCE_S):
            found = await asyncio.to_thread(lambda: evidence(key, action.reason, jobs.processes(action.ref), samples))
        await keep(name, found)
    except (OSError, TimeoutError) as error:
        return EvidenceSaved(key, f"its evidence could not be saved: {error or 'the kernel did not answer'}")
    return EvidenceSaved(key, f"the evidence is in {name} on its node")


def _is_busy(attempt: Attempt, samples: Mapping[GpuId, Sample]) -> bool:
    """What a device does not tell is not held against the job."""
    told = (samples[uuid].busy_percent for uuid in attempt.gpus if uuid in samples)
    return any(isinstance(percent, int) and percent >= BUSY_PERCENT for percent in told)


def _all_signs(jobs: JobSupervisors, attempts: Sequence[Attempt], samples: Mapping[GpuId, Sample]) -> list[tuple[int, ...]]:
    """Reads /proc: not for the event loop."""
    return [_signs(jobs, attempt, samples) for attempt in attempts]


def _signs(jobs: JobSupervisors, attempt: Attempt, samples: Mapping[GpuId, Sample]) -> tuple[int, ...]:
    used = (samples[uuid].memory_used_bytes for uuid in attempt.gpus if uuid in samples)
    memory = sum(each for each in used if isinstance(each, int))
    return (jobs.checkpointed_ns(attempt.ref), jobs.output_bytes(attempt.ref), memory, *_moved(jobs.processes(attempt.ref)))


def _moved(pids: Iterable[int]) -> list[int]:
    return [number for pid in pids for number in (pid, processes.moved_bytes(pid))]
