"""Rules of other routers, from their documentation, as gateways of the simulated serving cluster.

All bind a request at its arrival, as those routers do; a request whose replica dies before its
first token goes to another one, as Muster's gateway does it. They serve as a comparison.
"""

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from random import Random
from typing import Final, Protocol

from tests.sim.engine import UNIT_TOKENS, Asked
from tests.sim.serving import Run

# SGLang's gateway (cache_aware): the replica with the longest match if it is above this part;
# shortest queue if the loads differ by more than both bounds.
SMG_MATCH: Final = 0.3
SMG_APART: Final = 64
SMG_RATIO: Final = 1.5
# Units that one replica's tree keeps (2**20 tokens here).
SMG_TREE: Final = 2_048
# llm-d: prefix cache affinity filter with its default threshold and prefill rate, and the penalty
# of its example (its default is 18 s).
LLMD_MATCH: Final = 0.8
LLMD_PENALTY_S: Final = 5.0
LLMD_RATE: Final = 15_928


class Rule(Protocol):
    """Chooses one of the ready replicas."""

    def choose(self, asked: Asked, ready: Sequence[int], loads: "Counts") -> int: ...


class Counts:
    """The counts that a router keeps for each replica."""

    def __init__(self) -> None:
        self.outstanding: dict[int, int] = {}
        self.pending: dict[int, int] = {}
        self.held: dict[int, OrderedDict[int, None]] = {}

    def matched(self, asked: Asked, replica: int) -> int:
        """Return how many units of the prompt were sent to the replica before."""
        held = self.held.get(replica, ())
        for place, unit in enumerate(asked.units):
            if unit not in held:
                return place
        return len(asked.units)

    def fewest(self, ready: Sequence[int], turn: int = 0) -> int:
        return min(
            ready,
            key=lambda each: (self.outstanding.get(each, 0), (each - turn) % (max(ready) + 1)),
        )

    def note(self, asked: Asked, replica: int) -> None:
        held = self.held.setdefault(replica, OrderedDict())
        for unit in reversed(asked.units):
            held[unit] = None
            held.move_to_end(unit)
        while len(held) > SMG_TREE:
            held.popitem(last=False)


class AtOnce:
    """A gateway that binds each request at its arrival by a rule."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.counts = Counts()
        self.retried = 0
        self._miss: dict[int, int] = {}
        self._held_back: list[Asked] = []

    def arrived(self, run: Run, asked: Asked, now_ns: int) -> None:
        if not run.ready:
            self._held_back.append(asked)
            return
        counts = self.counts
        replica = self.rule.choose(asked, run.ready, counts)
        miss = asked.input_tokens - UNIT_TOKENS * counts.matched(asked, replica)
        counts.note(asked, replica)
        counts.outstanding[replica] = counts.outstanding.get(replica, 0) + 1
        counts.pending[replica] = counts.pending.get(replica, 0) + miss
        self._miss[asked.name] = miss
        run.send(asked, replica, now_ns)

    def first_token(self, run: Run, asked: Asked, replica: int, now_ns: int) -> None:
        self.counts.pending[replica] -= self._miss.pop(asked.name)

    def ended(self, run: Run, asked: Asked, replica: int, now_ns: int) -> None:
        self.counts.outstanding[replica] -= 1

    def broke(self, run: Run, asked: Asked, replica: int, now_ns: int) -> None:
        self.first_token(run, asked, replica, now_ns)
        self.ended(run, asked, replica, now_ns)
        self.counts.held.pop(replica, None)
        self.retried += 1
        self.arrived(run, asked, now_ns)

    def ticked(self, run: Run, now_ns: int) -> None:
        waiting, self._held_back = self._held_back, []
        for asked in waiting:
            self.arrived(run, asked, now_ns)


class AtRandom:
    def __init__(self) -> None:
        self.chance = Random(0)

    def choose(self, asked: Asked, ready: Sequence[int], loads: Counts) -> int:
        return self.chance.choice(ready)


class RoundRobin:
    def __init__(self) -> None:
        self.turn = 0

    def choose(self, asked: Asked, ready: Sequence[int], loads: Counts) -> int:
        self.turn += 1
        return ready[self.turn % len(ready)]


class LeastRequests:
    """The fewest outstanding requests, equals in turns: what Muster's gateway did before."""

    def __init__(self) -> None:
        self.turn = 0

    def choose(self, asked: Asked, ready: Sequence[int], loads: Counts) -> int:
        self.turn += 1
        return loads.fewest(ready, self.turn)


class ConsistentHash:
    """A hash of the prompt's first unit, whatever the load."""

    def choose(self, asked: Asked, ready: Sequence[int], loads: Counts) -> int:
        key = asked.units[0] if asked.units else asked.name

        def rank(replica: int) -> bytes:
            return blake2b(f"{key}/{replica}".encode(), digest_size=8).digest()

        return max(ready, key=rank)


class CacheAware:
    """SGLang's gateway: the longest match above 0.3, else the smallest tree; the shortest queue
    while the loads are unbalanced.
    """

    def choose(self, asked: Asked, ready: Sequence[int], loads: Counts) -> int:
        counts = [loads.outstanding.get(each, 0) for each in ready]
        most, least = max(counts), min(counts)
        if most - least > SMG_APART and most > SMG_RATIO * least:
            return loads.fewest(ready)
        best = max(ready, key=lambda each: loads.matched(asked, each))
        if loads.matched(asked, best) * UNIT_TOKENS > SMG_MATCH * asked.input_tokens:
            return best
        return min(ready, key=lambda each: len(loads.held.get(each, ())))


class LlmdGate:
    """llm-d: the replicas that hold 0.8 of the prompt, unless the least loaded other one is more
    than the penalty sooner; then the least unprocessed tokens.
    """

    def choose(self, asked: Asked, ready: Sequence[int], loads: Counts) -> int:
        def miss(replica: int) -> int:
            return asked.input_tokens - UNIT_TOKENS * loads.matched(asked, replica)

        def wait_s(replica: int) -> float:
            return (loads.pending.get(replica, 0) + miss(replica)) / LLMD_RATE

        def load(replica: int) -> tuple[float, int]:
            return wait_s(replica), loads.outstanding.get(replica, 0)

        held = [each for each in ready if miss(each) <= (1 - LLMD_MATCH) * asked.input_tokens]
        best = min(ready, key=load)
        if not held:
            return best
        wanted = min(held, key=load)
        return best if wait_s(wanted) - wait_s(best) > LLMD_PENALTY_S else wanted


RULES: Final[dict[str, type[Rule]]] = {
    "random": AtRandom,
    "round_robin": RoundRobin,
    "least_requests": LeastRequests,
    "consistent_hash": ConsistentHash,
    "smg_cache_aware": CacheAware,
    "llmd_gate": LlmdGate,
}
