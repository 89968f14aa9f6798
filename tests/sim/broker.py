"""The memory broker of a simulated machine, over the real books
(`services/node_agent/memory/grants.py`).

`SimBroker.memory` counts what exists, apart from the books; the checkers read it. Jobs
ask for all they may have and for more, return some, and die.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from libs.common.model import Gpu
from services.node_agent.memory import grants as g
from services.node_agent.memory.device_numbers import DeviceNumbers

STEP: Final = 2 << 20
# Requests of each job when it begins: some are more than its pool has left.
ASKS: Final = 6
# A broker without an agent ends this long after its last job. The real one waits for five minutes
# (`services/node_agent/memory/broker.py`), longer than most runs last.
ORPHAN_S: Final = 5.0


class SimBroker:
    """The broker of a machine and what it created: `memory` is (attempt key, device, bytes).

    Devices with an odd number are like a vendor's: their memory cannot be revoked. Memory of an
    `orphan`, whose agent has another state directory now, ends with the job. A broker to which no
    agent connects again ends by itself. `later` schedules an act outside any process.
    """

    def __init__(
        self,
        node_id: str,
        gpus: Sequence[Gpu],
        host_bytes: int,
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self.node_id = node_id
        self.later = later
        self.books = g.Books()
        self.memory: dict[int, tuple[str, int, int]] = {}
        self.numbers = DeviceNumbers()
        self.capacity = {self.numbers.number_of(gpu): gpu.memory_bytes for gpu in gpus}
        self.capacity[g.HOST] = host_bytes
        for number, size in self.capacity.items():
            revocable = number == g.HOST or number % 2 == 0
            g.add_device(self.books, number, capacity=size, granularity=STEP, revocable=revocable)
        self.holders: dict[str, g.Holder] = {}
        # Memory that could have been revoked when its holder ended, by attempt.
        self.left_by_dead: dict[str, int] = {}
        self.begun = 0
        # How many agents have connected.
        self.agents = 0
        self.orphan = False

    def admit(self, key: str, limits: Mapping[int, int]) -> None:
        g.admit(self.books, g.Attempt(key, "t", key.encode(), dict(limits), "/"))

    def released(self, key: str) -> None:
        self._free(g.released(self.books, key))

    def began(self, key: str) -> None:
        """A job's process begins and asks for memory."""
        attempt = self.books.attempts.get(key)
        if attempt is None:
            return
        self.begun += 1
        holder = self.holders[key] = g.Holder(self.begun, 1)
        dice = random.Random(f"asks {self.node_id} {key}")
        for device, limit in sorted(attempt.limits.items()):
            for _ in range(ASKS):
                self._ask(key, device, dice.randint(1, limit // 2 + STEP), holder)
            held = [grant for grant in self.books.grants.values() if grant.holder == holder]
            if held and dice.random() < 0.5:
                self._return(key, dice.choice(held).grant)
            self._ask(key, device, limit, holder)

    def died(self, key: str) -> None:
        """The job's process ended."""
        holder = self.holders.pop(key, None)
        if holder is not None:
            self._free(g.died(self.books, holder))
        left = [
            size
            for owner, device, size in self.memory.values()
            if owner == key and self.books.revocable[device]
        ]
        if left:
            self.left_by_dead[key] = sum(left)
        if self.orphan:
            self.released(key)

    def agent_came(self) -> None:
        self.agents += 1

    def agent_left(self) -> None:
        agents = self.agents
        if self.books.attempts:
            self.later(ORPHAN_S, lambda: self._end(agents))

    def _end(self, agents: int) -> None:
        """End, and all memory with it, unless an agent has connected meanwhile; wait while a job
        lives.

        The next agent knows the attempts from its file, and that what they held is lost.
        """
        if self.agents != agents:
            return
        if self.holders:
            self.later(ORPHAN_S, lambda: self._end(agents))
            return
        for key, attempt in list(self.books.attempts.items()):
            self.released(key)
            g.admit(self.books, replace(attempt, lost=True))

    def lose_agent(self) -> None:
        """Become an orphan: what no living process holds is freed now."""
        self.orphan = True
        for key in [each for each in self.books.attempts if each not in self.holders]:
            self.released(key)

    def _ask(self, key: str, device: int, size: int, holder: g.Holder) -> None:
        try:
            rounded = g.check(self.books, key, device, size, "")
        except g.Refusal:
            return
        wanted = g.Grant(0, key, device, rounded, "", holder)
        if g.take_spare(self.books, wanted) is None:
            self.memory[g.add(self.books, wanted).grant] = (key, device, rounded)

    def _return(self, key: str, number: int) -> None:
        grant = g.returned(self.books, key, number)
        self._free([grant] if grant is not None else [])

    def _free(self, found: Sequence[g.Grant]) -> None:
        for grant in found:
            g.remove(self.books, grant.grant)
            del self.memory[grant.grant]
