"""Made traces of requests with the shapes of public ones, for `serving.py`.

Mooncake publishes a conversation trace (mean input 12,035 tokens, output 343, 40 % of the input
seen before) and a tool agent trace (8,596, 182, 59 %); inference-perf has a load of groups that
share a system prompt; the fourth shape is one prompt that nearly all requests begin with. The made
traces have these shapes and print their means; the tool agents' instructions are longer than the
published ones (mean input 13,200 tokens). If
MUSTER_SERVING_TRACES names a folder with Mooncake's files, those are used instead
(`conversation_trace.jsonl`, `toolagent_trace.jsonl`).
"""

import json
from collections.abc import Callable, Iterator
from itertools import count as counter
from pathlib import Path
from random import Random
from typing import Final

from services.api_gateway.serving.prefix_index import BLOCK_BYTES, chain
from tests.sim.engine import UNIT_TOKENS, Asked

SECOND_NS: Final = 1_000_000_000
TENANTS: Final = tuple(f"t{number}" for number in range(10))
# Four bytes per token.
UNIT_BYTES: Final = 4 * UNIT_TOKENS
FILES: Final = {
    "conversation": "conversation_trace.jsonl",
    "tool_agent": "toolagent_trace.jsonl",
}


class Maker:
    """Makes requests with fresh units; one seed gives one trace."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self._units = counter(1)
        self._names = counter()

    def units(self, tokens: int) -> tuple[int, ...]:
        return tuple(next(self._units) for _ in range(tokens // UNIT_TOKENS))

    def size(self, mean: float, least: int = 1) -> int:
        """A size with a long tail."""
        sigma = 0.8
        return max(least, int(self.chance.lognormvariate(0.0, sigma) * mean / 1.377))

    def arrivals(self, rate: float) -> Iterator[float]:
        at_s = 0.0
        while True:
            at_s += self.chance.expovariate(rate)
            yield at_s

    def ask(self, at_s: float, tenant: str, units: tuple[int, ...], output: int) -> Asked:
        """A request whose prompt has half a unit beyond the whole ones."""
        tokens = len(units) * UNIT_TOKENS + UNIT_TOKENS // 2
        return Asked(
            name=next(self._names),
            at_ns=int(at_s * SECOND_NS),
            tenant=tenant,
            units=units,
            input_tokens=tokens,
            output_tokens=output,
        )


def conversation(requests: int, rate: float, seed: int = 1) -> list[Asked]:
    """Sessions of 1.8 turns; each turn repeats the earlier ones and adds to them."""
    maker, found = Maker(seed), list[Asked]()
    for began_s in maker.arrivals(rate / 1.8):
        tenant, at_s = maker.chance.choice(TENANTS), began_s
        units = maker.units(maker.size(9_600))
        while True:
            output = maker.size(343)
            found.append(maker.ask(at_s, tenant, units, output))
            if maker.chance.random() > 0.45:
                break
            at_s += output * 0.02 + maker.chance.expovariate(1 / 30)
            units = (*units, *maker.units(output + maker.size(2_500)))
        if len(found) >= 1.3 * requests:
            return _first(found, requests)
    raise AssertionError("arrivals never end")


def tool_agent(requests: int, rate: float, seed: int = 2) -> list[Asked]:
    """Agents with long instructions, some much more used than others, and a part of their own."""
    maker, found = Maker(seed), list[Asked]()
    agents = [(maker.units(maker.size(5_500, 1_024)), TENANTS[each % 10]) for each in range(40)]
    weights = [1 / (1 + each) for each in range(len(agents))]
    for at_s in maker.arrivals(rate):
        (units, tenant), *_ = maker.chance.choices(agents, weights)
        own = maker.units(maker.size(3_500))
        found.append(maker.ask(at_s, tenant, (*units, *own), maker.size(182)))
        if len(found) >= requests:
            return found
    raise AssertionError("arrivals never end")


def shared_prefix(requests: int, rate: float, seed: int = 3) -> list[Asked]:
    """256 groups with a system prompt of 8,192 tokens each: more than one engine's cache holds."""
    maker, found = Maker(seed), list[Asked]()
    groups = [maker.units(8_192) for _ in range(256)]
    for at_s in maker.arrivals(rate):
        group = maker.chance.randrange(len(groups))
        units = (*groups[group], *maker.units(512))
        found.append(maker.ask(at_s, TENANTS[group % 10], units, maker.size(256)))
        if len(found) >= requests:
            return found
    raise AssertionError("arrivals never end")


def hot_prefix(requests: int, rate: float, seed: int = 4) -> list[Asked]:
    """Four of five requests begin with the same 8,192 tokens, from one tenant."""
    maker, found = Maker(seed), list[Asked]()
    hot = maker.units(8_192)
    for at_s in maker.arrivals(rate):
        if maker.chance.random() < 0.8:
            asked = maker.ask(at_s, TENANTS[0], (*hot, *maker.units(512)), maker.size(256))
        else:
            tenant = maker.chance.choice(TENANTS)
            asked = maker.ask(at_s, tenant, maker.units(maker.size(4_000)), maker.size(256))
        found.append(asked)
        if len(found) >= requests:
            return found
    raise AssertionError("arrivals never end")


def flood(requests: int, rates: dict[str, float], seed: int = 5) -> list[Asked]:
    """Short prompts that share nothing, from each tenant at its own rate."""
    found: list[Asked] = []
    total = sum(rates.values())
    for number, (tenant, rate) in enumerate(rates.items()):
        # A tenant's requests are the same whatever the others do.
        maker = Maker(seed * 1_000 + number)
        maker._units = counter(1 + (number << 40))
        maker._names = counter(number << 40)
        until_s = requests / total
        for at_s in maker.arrivals(rate):
            if at_s > until_s:
                break
            found.append(maker.ask(at_s, tenant, maker.units(maker.size(1_500)), maker.size(200)))
    return sorted(found, key=lambda asked: asked.at_ns)


def waves(seconds: int, count: int, low: float, high: float, seed: int = 6) -> list[Asked]:
    """Prompts at a rate that rises from `low` to `high` and falls again, `count` times."""
    maker, found = Maker(seed), list[Asked]()
    for at_s in maker.arrivals(high):
        if at_s > seconds:
            return found
        phase = (count * at_s / seconds) % 1
        rate = low + (high - low) * (1 - abs(2 * phase - 1))
        if maker.chance.random() < rate / high:
            units = maker.units(maker.size(6_000))
            found.append(maker.ask(at_s, maker.chance.choice(TENANTS), units, maker.size(250)))
    raise AssertionError("arrivals never end")


def _first(found: list[Asked], requests: int) -> list[Asked]:
    return sorted(found, key=lambda asked: asked.at_ns)[:requests]


def read(file: Path, requests: int, rate: float) -> list[Asked]:
    """Read a trace of Mooncake, at another rate; its requests have no tenants, so they get some."""
    found = []
    with file.open() as lines:
        for name, line in zip(range(requests), lines, strict=False):
            row = json.loads(line)
            tokens = max(1, row["input_length"])
            units = tuple(row["hash_ids"][: tokens // UNIT_TOKENS])
            tenant = TENANTS[(units[0] if units else name) % 10]
            at_ns = int(row["timestamp"]) * 1_000_000
            found.append(Asked(name, at_ns, tenant, units, tokens, max(1, row["output_length"])))
    stretch = len(found) / rate * SECOND_NS / max(1, found[-1].at_ns)
    return [asked._replace(at_ns=int(asked.at_ns * stretch)) for asked in found]


def hashing() -> Callable[[Asked], tuple[int, ...]]:
    """Return a function from a request to the hashes of its prompt, as the gateway makes them."""
    known: dict[int, tuple[int, ...]] = {}

    def hashes(asked: Asked) -> tuple[int, ...]:
        found = known.get(asked.name)
        if found is None:
            text = b"".join(
                unit.to_bytes(8) * (UNIT_BYTES // 8) for unit in asked.units
            ) + asked.name.to_bytes(8) * (UNIT_BYTES // 16)
            found = known[asked.name] = chain(asked.tenant.encode(), text)
        return found

    assert UNIT_BYTES % BLOCK_BYTES == 0
    return hashes
