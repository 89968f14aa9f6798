"""SIGKILL to every part of the cluster in turn, then to all at once, again and again; the launcher starts each of them anew."""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from typing import Final

from libs.embedded.living import Ticket
from tests.chaos.cluster import Chaos

AGENT: Final = "agent"
EVERYTHING: Final = "everything"
SERVICES: Final = ("quota", "nats-server", "gateway", "audit")
TARGETS: Final = ("scheduler", AGENT, *SERVICES, EVERYTHING)
PAUSE_S: Final = (1.0, 2.0)
BACK_S: Final = 20.0
LOOK_S: Final = 0.05


async def kill_in_turn(chaos: Chaos, kills: int, chance: random.Random) -> tuple[Counter[str], list[str]]:
    """How often each target was killed, and who did not come back from the kill before."""
    done: Counter[str] = Counter()
    absent: list[str] = []
    dead: dict[str, Ticket] = {}
    for number in range(kills):
        target = TARGETS[number % len(TARGETS)]
        for name in _names(chaos, target, chance):
            found = await _living(chaos, name, dead.get(name))
            if found is None:
                absent.append(f"{name} did not come back within {BACK_S:.0f} s of its last kill")
            else:
                os.kill(found.pid, signal.SIGKILL)
                dead[name] = found
        done[target] += 1
        await asyncio.sleep(chance.uniform(*PAUSE_S))
    return done, absent


def _names(chaos: Chaos, target: str, chance: random.Random) -> list[str]:
    """The processes of a target, as the launcher names them."""
    agents = [f"node-{number}" for number in range(1, chaos.nodes + 1)]
    if target == EVERYTHING:
        return ["scheduler", *SERVICES, *agents]
    return [chance.choice(agents)] if target == AGENT else [target]


async def _living(chaos: Chaos, name: str, dead: Ticket | None) -> Ticket | None:
    deadline = time.monotonic() + BACK_S
    while time.monotonic() < deadline:
        found = chaos.ticket(name)
        if found is not None and found != dead:
            return found
        await asyncio.sleep(LOOK_S)
    return None
