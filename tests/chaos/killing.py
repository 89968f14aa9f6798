"""SIGKILL to every part of the cluster in turn, then to all at once, repeatedly; the launcher
restarts them.
"""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from libs.embedded.living import Ticket
from tests.chaos.cluster import Chaos
from tests.chaos.model_checks import Kill

AGENT: Final = "agent"
EVERYTHING: Final = "everything"
SERVICES: Final = ("quota", "nats-server", "gateway", "audit")
TARGETS: Final = ("scheduler", AGENT, *SERVICES, EVERYTHING)
PAUSE_S: Final = (1.0, 2.0)
BACK_S: Final = 20.0
LOOK_S: Final = 0.05


class Killing:
    """`kills` are what was killed, in order; `absent` names who did not come back from the kill
    before.
    """

    def __init__(self, chaos: Chaos, chance: random.Random) -> None:
        self.chaos, self.chance = chaos, chance
        self.kills: list[Kill] = []
        self.absent: list[str] = []
        self._dead: dict[str, Ticket] = {}

    async def in_turn(
        self, count: int, targets: Sequence[str | Callable[[], Awaitable[Kill | None]]] = TARGETS
    ) -> None:
        """So many kills; a target that is no name kills by itself, and says what."""
        for number in range(count):
            target = targets[number % len(targets)]
            if isinstance(target, str):
                await self._kill(target)
            elif (kill := await target()) is not None:
                self.kills.append(kill)
            await asyncio.sleep(self.chance.uniform(*PAUSE_S))

    def done(self) -> Counter[str]:
        return Counter(kill.name for kill in self.kills)

    async def _kill(self, target: str) -> None:
        for name in self._names(target):
            found = await self._living(name)
            if found is None:
                self.absent.append(
                    f"{name} did not come back within {BACK_S:.0f} s of its last kill"
                )
                continue
            os.kill(found.pid, signal.SIGKILL)
            self.kills.append(Kill(name, time.monotonic_ns()))
            self._dead[name] = found

    def _names(self, target: str) -> list[str]:
        """Return the launcher's process names of a target."""
        agents = [f"node-{number}" for number in range(1, self.chaos.nodes + 1)]
        if target == EVERYTHING:
            return ["scheduler", *SERVICES, *agents]
        return [self.chance.choice(agents)] if target == AGENT else [target]

    async def _living(self, name: str) -> Ticket | None:
        deadline = time.monotonic() + BACK_S
        while time.monotonic() < deadline:
            found = self.chaos.ticket(name)
            if found is not None and found != self._dead.get(name):
                return found
            await asyncio.sleep(LOOK_S)
        return None
