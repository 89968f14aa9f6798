"""Jobs and their submission through a gateway that may die.

Each job has its own name. The client looks for that name before it submits the job again.
"""

import asyncio
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.chaos.checks import ENDED
from tests.chaos.cluster import AGAIN_S, Chaos

SCRIPT: Final = Path(__file__).with_name("job.py")
AT_ONCE: Final = 8
TRIES_MAX: Final = 100
# Wait after a lost answer before the client looks for the job, which may still be on its way.
SETTLED_S: Final = 1.0
ALL_ENDED_S: Final = 240.0
ALWAYS: Final = 1_000_000


@dataclass(frozen=True)
class Wish:
    """One job: its first `failures` attempts exit with 3; `expected` is how it must end."""

    name: str
    seconds: float
    gpus: int = 1
    failures: int = 0
    retries: int = 0
    expected: str = "completed"


def mixed(count: int, chance: random.Random) -> list[Wish]:
    """Short ones, of one to four GPUs; every tenth fails once and is tried again, every twentieth
    fails for good.
    """
    wishes = []
    for number in range(count):
        seconds, gpus, name = (
            round(chance.uniform(0.2, 3.0), 2),
            chance.choice((1, 1, 1, 2, 4)),
            f"chaos-{number:04}",
        )
        if number % 20 == 7:
            wishes.append(
                Wish(
                    name=name,
                    seconds=seconds,
                    gpus=gpus,
                    failures=ALWAYS,
                    retries=1,
                    expected="failed",
                )
            )
        else:
            again = int(number % 10 == 3)
            wishes.append(
                Wish(name=name, seconds=seconds, gpus=gpus, failures=again, retries=again)
            )
    return wishes


async def submit_all(chaos: Chaos, wishes: Sequence[Wish], over_s: float) -> int:
    """Submit evenly over the given seconds; return how many tries failed."""
    began, slots = time.monotonic(), asyncio.Semaphore(AT_ONCE)

    async def at_its_time(number: int, wish: Wish) -> int:
        await asyncio.sleep(max(0.0, began + over_s * number / len(wishes) - time.monotonic()))
        async with slots:
            return await submit(chaos, wish)

    return sum(
        await asyncio.gather(*(at_its_time(number, wish) for number, wish in enumerate(wishes)))
    )


async def submit(chaos: Chaos, wish: Wish) -> int:
    """Submit until the job is stored; return how often that was unknown at first.

    Raises RuntimeError when the gateway refuses it for good.
    """
    for lost in range(TRIES_MAX):
        status, body = await chaos.try_once("POST", "/v1/jobs", json=_body(chaos, wish))
        if status == 201:
            return lost
        if status and status < 500:
            raise RuntimeError(f"{wish.name} was refused: {status} {body}")
        await asyncio.sleep(SETTLED_S)
        if await chaos.named(wish.name):
            return lost + 1
    raise RuntimeError(f"{wish.name} was not stored in {TRIES_MAX} tries")


def _body(chaos: Chaos, wish: Wish) -> dict[str, Any]:
    command = [
        sys.executable,
        "-S",
        str(SCRIPT),
        str(chaos.lives),
        str(wish.seconds),
        str(wish.failures),
    ]
    return {"name": wish.name, "command": command, "gpus": wish.gpus, "retries": wish.retries}


async def all_ended(chaos: Chaos) -> list[str]:
    """Wait for the end of every job; return the names of jobs that have not ended in time."""
    deadline, left = time.monotonic() + ALL_ENDED_S, ["?"]
    while left and time.monotonic() < deadline:
        jobs = await chaos.jobs()
        left = [
            f"{each['id']} ({each['name']}) is still {each['state']}"
            for each in jobs.values()
            if each["state"] not in ENDED
        ]
        await asyncio.sleep(AGAIN_S)
    return left
