"""Cost of `why` for one job among 100,000 waiting jobs, on 10,240 GPUs that are full.

`answer_ms` is the time of the whole proof with all its trials. `gap_ms` is the longest pause,
during the proof, of the loop that answers heartbeats; the loop ticks every millisecond.
`quiet_gap_ms` is the same without a question. The child process is forked as the live scheduler
does it.
"""

import asyncio
import gc
import time
from statistics import median
from typing import Final

import msgspec

from bench.cluster import QUICK, say
from bench.placement_whole import Steady
from libs.common.model import JobId
from services.scheduler.explain.explain import explain
from services.scheduler.questions.aside import Aside, forked

GPUS: Final = 1_024 if QUICK else 10_240
WAITING: Final = 10_000 if QUICK else 100_000
QUESTIONS: Final = 5
TICK_S: Final = 0.001
QUIET_S: Final = 2.0
DEADLINE_S: Final = 60.0
MS: Final = 1e6


async def gaps(done: asyncio.Event) -> float:
    """Return the longest time between two ticks, in milliseconds."""
    longest, last = 0, time.perf_counter_ns()
    while not done.is_set():
        await asyncio.sleep(TICK_S)
        now = time.perf_counter_ns()
        longest, last = max(longest, now - last), now
    return longest / MS


async def quiet() -> float:
    done = asyncio.Event()
    watching = asyncio.create_task(gaps(done))
    await asyncio.sleep(QUIET_S)
    done.set()
    return await watching


async def asked(steady: Steady, job_id: JobId) -> tuple[float, float, dict[str, object]]:
    """Ask; return the milliseconds until the answer, the longest gap, and the answer."""
    done = asyncio.Event()
    watching = asyncio.create_task(gaps(done))
    await asyncio.sleep(TICK_S)
    began = time.perf_counter_ns()
    state = steady.rig.state
    reply = await Aside(DEADLINE_S).answer(
        lambda: msgspec.json.encode(explain(state, job_id, forked)), lambda text: text.encode()
    )
    took = (time.perf_counter_ns() - began) / MS
    done.set()
    return took, await watching, msgspec.json.decode(reply)


async def measure(steady: Steady) -> None:
    gc.collect()
    gc.freeze()
    waiting = list(steady.rig.state.queue.waiting)
    setting = {"gpus": GPUS, "nodes": GPUS // 8, "waiting": len(waiting)}
    say("quiet_gap_ms", await quiet(), "ms", 1, **setting)
    found = [
        await asked(steady, waiting[len(waiting) * number // QUESTIONS])
        for number in range(QUESTIONS)
    ]
    changes = sum(
        len(answer["changes"]) for _, _, answer in found if isinstance(answer["changes"], list)
    )
    say(
        "answer_ms",
        median(took for took, _, _ in found),
        "ms",
        QUESTIONS,
        longest=max(took for took, _, _ in found),
        changes=changes,
        **setting,
    )
    say(
        "gap_ms",
        max(gap for _, gap, _ in found),
        "ms",
        QUESTIONS,
        median=median(gap for _, gap, _ in found),
        **setting,
    )


if __name__ == "__main__":
    asyncio.run(measure(Steady(GPUS, WAITING)))
