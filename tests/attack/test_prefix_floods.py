"""Prompts that are built to blow the index of prefixes: millions of different blocks, one long
prefix with every suffix, many tenants.

The gateway's memory and the time for a prompt stay bounded. The prompts of a modest tenant still
reach the replica that holds them.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Final

from services.api_gateway.serving.prefix_index import BLOCK_BYTES
from tests.attack.serving_world import (
    CHAT,
    GREEDY,
    IN_MAKE_ATTACK,
    MIB,
    MODEST_OPERATOR,
    Serving,
    serving,
)
from tests.tidy import ROOT

BACKEND: Final = ROOT / "bench" / "model_backend.py"
INDEX_MIB: Final = 16
PROMPT_BYTES: Final = 512 << 10
PROMPTS: Final = 1_000
AT_ONCE: Final = 4
TENANTS: Final = tuple(f"greedy-{number}" for number in range(20))
# The index, the bodies that are under way, and what the allocator keeps.
MORE_MIB: Final = INDEX_MIB + 256
BOUNDS: Final = {"MUSTER_MODEL_PREFIX_BYTES": str(INDEX_MIB * MIB)}
CALM_S: Final = 3.0
MODEST_PROMPTS: Final = 12


def letters(chance: Random, size: int) -> str:
    return chance.randbytes(size // 2).hex()


async def flood(world: Serving, prompts: Callable[[], str], tenants: Sequence[str]) -> float:
    """Send the prompts, and return the seconds that each took."""
    began, left, turns = time.monotonic(), itertools.count(), itertools.cycle(tenants)

    async def client() -> None:
        while next(left) < PROMPTS:
            async with world.session(next(turns)) as session:
                await ask(session_post=session.post, text=prompts())

    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    return (time.monotonic() - began) / PROMPTS


async def ask(session_post: Callable[..., object], text: str) -> str:
    """Send a prompt, and return the replica that answered, if the key may see it."""
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    async with session_post(CHAT, json=body) as answer:  # type: ignore[attr-defined]
        assert answer.status == 200, await answer.text()
        await answer.read()
        return str(answer.headers.get("x-muster-replica", ""))


async def replicas_of(world: Serving, prompts: Sequence[str]) -> list[str]:
    """Return the replicas that answer the modest tenant's prompts, as its operator sees them."""
    async with world.session(MODEST_OPERATOR) as session:
        return [await ask(session.post, each) for each in prompts]


@IN_MAKE_ATTACK
async def test_prompts_that_blow_the_prefix_index_are_bounded(tmp_path: Path) -> None:
    chance = Random(1)
    common = letters(chance, PROMPT_BYTES // 2)
    floods: dict[str, tuple[Callable[[], str], Sequence[str]]] = {
        "distinct blocks": (lambda: letters(chance, PROMPT_BYTES), (GREEDY,)),
        "one prefix, every suffix": (lambda: common + letters(chance, 4_096), (GREEDY,)),
        "many tenants": (lambda: letters(chance, PROMPT_BYTES // 4), TENANTS),
    }
    async with serving(tmp_path, BACKEND, tenants=TENANTS, **BOUNDS) as world:
        held = [letters(chance, 40 * BLOCK_BYTES) for _ in range(MODEST_PROMPTS)]
        first = await replicas_of(world, held)
        calm = await world.asked(CALM_S)
        before_mib, most_mib = world.memory_mib(), 0.0
        print(f"\ncalm: {calm.shown()}, gateway {before_mib:.0f} MiB")
        for name, (prompts, tenants) in floods.items():
            task = asyncio.create_task(flood(world, prompts, tenants))
            under = await world.asked(CALM_S)
            each_s = await task
            most_mib = max(most_mib, world.memory_mib())
            print(
                f"{name}: {each_s * 1_000:.1f} ms a prompt; {under.shown()}; gateway "
                f"{world.memory_mib():.0f} MiB"
            )
            assert under.times_s and not under.failed, under.failed[:5]
            assert await replicas_of(world, held) == first
        assert most_mib < before_mib + MORE_MIB
