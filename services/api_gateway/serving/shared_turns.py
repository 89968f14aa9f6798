"""Keeps the tenants' turns of one model equal over all gateways.

Each gateway tells the others, several times a second, what it charged each flow since the last time
and which flows wait there. Every gateway applies the charges of the others to its own counters, and
lifts a tenant that comes back as if it had come here, so all gateways have about the same counters.
A lost message loses its charges, and nothing else. Pure. Tests:
tests/unit/test_serving_shared_turns.py, tests/property/test_serving_gateways.py.
"""

from collections.abc import Collection
from typing import Final

from libs.common.messages.model_turns import Turn
from services.api_gateway.serving.fairness import SECOND_NS, Fairness, Flow

# A gateway that is silent for so long has no requests that wait.
SILENT_NS: Final = SECOND_NS
# Flows in one report; the others follow in the next ones.
FLOWS_MAX: Final = 1_024
# Gateways whose reports are kept.
SENDERS_MAX: Final = 64


class SharedTurns:
    """One model's part of what gateways tell each other."""

    def __init__(self, fairness: Fairness) -> None:
        self.fairness = fairness
        self._charged: dict[Flow, tuple[int, int]] = {}
        self._waiting: dict[str, tuple[int, dict[Flow, int]]] = {}

    def charged(self, flow: Flow, weight: int, tokens: int) -> None:
        """Note what this gateway charged a flow. Negative numbers correct an estimate."""
        _, before = self._charged.get(flow, (weight, 0))
        self._charged[flow] = weight, before + tokens

    def report(self, skipped: Collection[Flow] = ()) -> list[Turn]:
        """Return what the other gateways need to know now: charges and flows that wait.

        `skipped` are flows that let others pass here. They are not reported as waiting, because
        other gateways would hold their tenants back for them.
        """
        waiting = self.fairness.waiting()
        waiting_here = (flow for flow in waiting if flow not in skipped)
        flows = dict.fromkeys((*waiting_here, *self._charged))
        found = []
        for flow in list(flows)[:FLOWS_MAX]:
            weight, tokens = self._charged.pop(flow, (waiting.get(flow, 1), 0))
            waits = flow in waiting and flow not in skipped
            found.append(Turn(flow.band, flow.tenant, weight, tokens, waits))
        return found

    def heard(self, sender: str, turns: list[Turn], now_ns: int) -> None:
        """Take over the report of another gateway."""
        if sender not in self._waiting and len(self._waiting) >= SENDERS_MAX:
            return
        waiting = {Flow(each.band, each.tenant): each.weight for each in turns if each.is_waiting}
        self._waiting[sender] = now_ns, waiting
        self.settle(now_ns)
        for each in turns:
            if each.tokens:
                flow = Flow(each.band, each.tenant)
                self.fairness.charge_elsewhere(flow, each.weight, each.tokens, now_ns)
        charged = [Flow(each.band, each.tenant) for each in turns if each.tokens]
        self.fairness.level_elsewhere(charged)

    def settle(self, now_ns: int) -> None:
        """Forget what silent gateways said. Call it several times a second."""
        silent = [
            sender for sender, (at_ns, _) in self._waiting.items() if now_ns - at_ns > SILENT_NS
        ]
        for sender in silent:
            del self._waiting[sender]
        waiting: dict[Flow, int] = {}
        for _, flows in self._waiting.values():
            waiting |= flows
        self.fairness.wait_elsewhere(waiting)
