"""Chooses the tenant whose request goes next: virtual token counters inside strict priority bands.

Each tenant has a counter of the tokens that it used, divided by its weight. The waiting tenant with
the lowest counter goes next. A tenant that was idle is lifted to the level of the others when it
comes back, so no tenant saves up turns (VTC, OSDI'24). A lower band gets a turn only when no higher
band waits, or when it starves. Pure; counters are whole numbers, so that equal runs give equal
choices. Tests: tests/unit/test_serving_fairness.py, tests/property/test_serving_turns.py.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

# A counter counts millionths of a token divided by the weight: no weight makes a token free.
SCALE: Final = 1_000_000
# An output token costs an engine about as much as two input tokens.
OUTPUT_COST: Final = 2
SECOND_NS: Final = 1_000_000_000
# A band starves if a request of it waited this long, and if the band got less than this part of all
# tokens meanwhile.
STARVED_NS: Final = 60 * SECOND_NS
STARVED_PERCENT: Final = 5
# Served tokens are remembered in slots of this length.
SLOT_NS: Final = SECOND_NS
# Counters of idle tenants that are kept; the lift replaces a forgotten one.
IDLE_MAX: Final = 4_096
# A flow that is further ahead of one that waits at another gateway lets that one go first. Reports
# of charges are late by a part of a second, so a smaller difference may be none.
AHEAD_TOKENS: Final = 8_192


class Flow(NamedTuple):
    """The requests of one tenant in one band; band 0 is the highest."""

    band: int
    tenant: str


def _no_match(flow: Flow) -> int:
    return 0


class _Band:
    """The state of one band. `level` is the lowest counter that was served last.

    `elsewhere` are tenants whose requests wait at other gateways.
    """

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}
        self.weights: dict[str, int] = {}
        self.waiting: dict[str, deque[int]] = {}
        self.elsewhere: dict[str, None] = {}
        self.level = 0

    def lowest(self) -> int:
        active = self.waiting if not self.elsewhere else (*self.waiting, *self.elsewhere)
        return min((self.counters[tenant] for tenant in active), default=self.level)

    def lift(self, tenant: str) -> None:
        """Lift a tenant that comes back to the level of those that wait."""
        self.counters[tenant] = max(self.counters.get(tenant, 0), self.lowest())

    def forget_idle(self) -> None:
        """Forget idle tenants that owe nothing, then the ones that were created first."""
        if len(self.counters) - len(self.waiting) <= IDLE_MAX:
            return
        idle = [
            tenant
            for tenant in self.counters
            if tenant not in self.waiting and tenant not in self.elsewhere
        ]
        level = self.lowest()
        owing = [tenant for tenant in idle if self.counters[tenant] > level]
        kept = frozenset(owing[-(IDLE_MAX // 2) :])
        for tenant in idle:
            if tenant not in kept:
                del self.counters[tenant], self.weights[tenant]


class Fairness:
    """The counters of one model.

    `slack` allows a tenant to go before the lowest one if its counter is at most so many tokens
    higher and its request matches the replica's cache better. 0 is plain VTC.
    """

    def __init__(self, slack: int = 0) -> None:
        self.slack = slack * SCALE
        self.is_shared = False
        self._bands: dict[int, _Band] = {}
        self._served: deque[tuple[int, dict[int, int]]] = deque()

    def arrive(self, flow: Flow, weight: int, now_ns: int) -> None:
        """Count one more waiting request of the flow."""
        self._entered(flow, weight).append(now_ns)

    def put_back(self, flow: Flow, weight: int, arrived_ns: int) -> None:
        """Count a request again that was taken: it is the flow's first one."""
        self._entered(flow, weight).appendleft(arrived_ns)

    def _entered(self, flow: Flow, weight: int) -> deque[int]:
        assert weight > 0, f"the weight of {flow} is {weight}"
        band = self._band(flow.band)
        if flow.tenant not in band.waiting:
            if flow.tenant not in band.elsewhere:
                band.lift(flow.tenant)
            band.waiting[flow.tenant] = deque()
            band.forget_idle()
        band.weights[flow.tenant] = weight
        return band.waiting[flow.tenant]

    def choose(
        self,
        now_ns: int,
        match: Callable[[Flow], int] = _no_match,
        skipped: Collection[Flow] = (),
    ) -> Flow | None:
        """Return the flow whose first request goes next; None if nothing waits.

        `match` returns how well a flow's first request fits where it would go; higher is better.
        `skipped` are flows whose first request cannot go now.
        """
        waiting = {
            number: flows
            for number in sorted(self._bands)
            if (flows := self._waiting(number, skipped))
        }
        if not waiting:
            return None
        highest, *lower = waiting
        for number in lower:
            if self._starves(number, now_ns):
                return self._oldest(waiting[number])
        counters = self._bands[highest].counters
        limit = min(counters[flow.tenant] for flow in waiting[highest]) + self.slack
        near = [flow for flow in waiting[highest] if counters[flow.tenant] <= limit]
        return min(near, key=lambda flow: (-match(flow), counters[flow.tenant], flow.tenant))

    def take(self, flow: Flow, now_ns: int, arrived_ns: int | None = None) -> None:
        """Remove a waiting request of the flow.

        It is the first one, or the one that arrived at `arrived_ns` and gave up.
        """
        band = self._bands[flow.band]
        queue = band.waiting[flow.tenant]
        if arrived_ns is None:
            band.level = max(band.level, band.lowest())
            queue.popleft()
        else:
            queue.remove(arrived_ns)
        if not queue:
            del band.waiting[flow.tenant]

    def serve_at_once(self, flow: Flow, weight: int) -> None:
        """Do what `arrive` and `take` do together for a request that never waits.

        Call it only while nothing waits.
        """
        band = self._band(flow.band)
        band.forget_idle()
        counter = max(band.counters.get(flow.tenant, 0), band.level)
        band.counters[flow.tenant] = band.level = counter
        band.weights[flow.tenant] = weight

    def charge(self, flow: Flow, input_tokens: int, output_tokens: int, now_ns: int) -> None:
        """Charge tokens to the flow. Negative numbers correct an estimate that was too high."""
        tokens = input_tokens + OUTPUT_COST * output_tokens
        band = self._band(flow.band)
        weight = band.weights.setdefault(flow.tenant, 1)
        paid = band.counters.get(flow.tenant, band.level)
        band.counters[flow.tenant] = paid + tokens * SCALE // weight
        self._remember(flow.band, tokens, now_ns)

    def charge_elsewhere(self, flow: Flow, weight: int, tokens: int, now_ns: int) -> None:
        """Charge tokens that another gateway charged to the flow."""
        self._band(flow.band).weights.setdefault(flow.tenant, weight)
        self.charge(flow, tokens, 0, now_ns)

    def wait_elsewhere(self, flows: Mapping[Flow, int]) -> None:
        """Note the flows whose requests wait at other gateways, with their weights.

        A flow that was idle everywhere is lifted, as if it had come here.
        """
        for number in sorted(dict.fromkeys((*self._bands, *(flow.band for flow in flows)))):
            band = self._band(number)
            named = {flow.tenant: weight for flow, weight in flows.items() if flow.band == number}
            for tenant, weight in named.items():
                if tenant not in band.waiting and tenant not in band.elsewhere:
                    band.lift(tenant)
                    band.weights[tenant] = weight
            band.elsewhere = dict.fromkeys(named)
            band.forget_idle()
        self.is_shared = bool(flows)

    def level_elsewhere(self, flows: Iterable[Flow]) -> None:
        """Raise the level to that of flows that other gateways have just charged.

        So a flow that was idle everywhere does not begin below them.
        """
        charged: dict[int, list[int]] = {}
        for flow in flows:
            charged.setdefault(flow.band, []).append(self.counter(flow))
        for number, counters in charged.items():
            band = self._bands[number]
            is_active = band.waiting or band.elsewhere
            band.level = max(band.level, band.lowest() if is_active else min(counters))

    def is_ahead(self, flow: Flow) -> bool:
        """Return whether the flow lets one go first that waits at another gateway.

        It does if it is so far ahead of one in its band that late reports do not explain it.
        """
        band = self._bands.get(flow.band)
        if band is None or not band.elsewhere:
            return False
        lowest = min(band.counters[tenant] for tenant in band.elsewhere)
        weight = band.weights.get(flow.tenant, 1)
        return (self.counter(flow) - lowest) * weight > AHEAD_TOKENS * SCALE

    def waiting(self) -> dict[Flow, int]:
        """Return the flows whose requests wait here, with their weights."""
        return {
            Flow(number, tenant): band.weights[tenant]
            for number, band in self._bands.items()
            for tenant in band.waiting
        }

    def counter(self, flow: Flow) -> int:
        """Return the flow's counter in millionths of a token divided by its weight."""
        band = self._bands.get(flow.band)
        return band.counters.get(flow.tenant, band.level) if band is not None else 0

    def _band(self, number: int) -> _Band:
        band = self._bands.get(number)
        if band is None:
            band = self._bands[number] = _Band()
        return band

    def _remember(self, band: int, tokens: int, now_ns: int) -> None:
        slot, slots = now_ns // SLOT_NS, self._served
        if not slots or slots[-1][0] != slot:
            slots.append((slot, {}))
            while (slot - slots[0][0]) * SLOT_NS > STARVED_NS:
                slots.popleft()
        served = slots[-1][1]
        served[band] = served.get(band, 0) + tokens

    def _starves(self, number: int, now_ns: int) -> bool:
        oldest = min(queue[0] for queue in self._bands[number].waiting.values())
        if now_ns - oldest < STARVED_NS:
            return False
        recent = [
            served
            for slot, served in self._served
            if (now_ns // SLOT_NS - slot) * SLOT_NS <= STARVED_NS
        ]
        total = sum(sum(served.values()) for served in recent)
        own = sum(served.get(number, 0) for served in recent)
        return 100 * own < STARVED_PERCENT * total

    def _waiting(self, number: int, skipped: Collection[Flow]) -> list[Flow]:
        flows = [Flow(number, tenant) for tenant in self._bands[number].waiting]
        return [flow for flow in flows if flow not in skipped] if skipped else flows

    def _oldest(self, flows: list[Flow]) -> Flow:
        return min(flows, key=lambda flow: (self.arrived_ns(flow), flow))

    def arrived_ns(self, flow: Flow) -> int:
        """Return when the flow's first waiting request arrived."""
        return self._bands[flow.band].waiting[flow.tenant][0]


def jain(shares: Iterable[float]) -> float:
    """Return Jain's index of the tenants' shares: 1 if all are equal, 1/n if one has everything."""
    given = list(shares)
    squares = sum(share * share for share in given)
    return sum(given) ** 2 / (len(given) * squares) if squares else 1.0
