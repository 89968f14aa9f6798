"""The time of all GPUs of the cluster: how long they were there, and what of it was allocated.

Pure. A node counts from its registration until it is lost or removed. A charge counts with the part
of it that lies in the time that was asked for. Tests: tests/unit/test_fleet_use.py.
"""

from collections import Counter
from typing import Final

from libs.common import bounds
from libs.common import facts as f
from libs.common.facts import AnyFact, ChargePart
from libs.common.messages.usage_messages import FleetLine
from libs.common.model import WHOLE_GPU, NodeId
from services.audit.export.charge_cells import parts_of, split_use

# The kinds of facts that are read from the first one on.
NODE_KINDS: Final = ("node.registered", "node.lost", "node.returned", "node.removed")
CHARGE_KINDS: Final = ("usage.charged",)
# Models of GPUs that are told apart; further ones count together.
MODELS_MAX: Final = 100
LETTERS_MAX: Final = 64
OTHERS: Final = "other"
MS: Final = 1_000_000


class FleetUse:
    """The use of the fleet from `since_ns` to before `until_ns`.

    `there` are the nodes that are there, each with the time of its arrival; `gpus` has the number
    of GPUs of each model, also for nodes that are away.
    """

    def __init__(self, since_ns: int, until_ns: int) -> None:
        self.since_ns, self.until_ns = since_ns, until_ns
        self.there: dict[NodeId, int] = {}
        self.gpus: dict[NodeId, Counter[str]] = {}
        self.lines: dict[str, FleetLine] = {}

    def add(self, fact: AnyFact | f.Unknown, at_ns: int) -> None:
        """Add a fact that was recorded at this time; other kinds add nothing."""
        match fact:
            case f.NodeRegistered() if bounds.bounded(fact) is not None:
                self._leave(fact.node_id, at_ns)
                self.gpus[fact.node_id] = Counter(gpu.model[:LETTERS_MAX] for gpu in fact.gpus)
                self.there[fact.node_id] = at_ns
            case f.NodeReturned():
                self.there.setdefault(fact.node_id, at_ns)
            case f.NodeLost() | f.NodeRemoved():
                self._leave(fact.node_id, at_ns)
            case f.UsageCharged():
                self._charge(fact, at_ns)
            case _:
                pass

    def answer(self) -> list[FleetLine]:
        """Return a line for each model of GPU, by name; nothing may be added afterwards."""
        for node_id in list(self.there):
            self._leave(node_id, self.until_ns)
        return [self.lines[model] for model in sorted(self.lines)]

    def _leave(self, node_id: NodeId, at_ns: int) -> None:
        came_ns = self.there.pop(node_id, None)
        if came_ns is None:
            return
        span_ms = self._overlap_ns(came_ns, at_ns) // MS
        for model, count in self.gpus.get(node_id, Counter[str]()).items():
            self._line(model).capacity_share_ms += WHOLE_GPU * count * span_ms

    def _overlap_ns(self, began_ns: int, ended_ns: int) -> int:
        return max(0, min(ended_ns, self.until_ns) - max(began_ns, self.since_ns))

    def _charge(self, fact: f.UsageCharged, at_ns: int) -> None:
        """Add the part of a charge that lies in the time.

        Older facts do not say when the attempt ran: they count when they were recorded.
        """
        span_ns = fact.ended_ns - fact.began_ns if fact.began_ns else 0
        if span_ns > 0:
            inside_ns = self._overlap_ns(fact.began_ns, fact.ended_ns)
        else:
            span_ns, inside_ns = 1, int(self.since_ns <= at_ns < self.until_ns)
        parts = parts_of(fact)
        for part, use in zip(
            parts, split_use(fact, [each.share_ms for each in parts]), strict=True
        ):
            self._add(part, use, inside_ns, span_ns)

    def _add(self, part: ChargePart, use: tuple[int, int], inside_ns: int, span_ns: int) -> None:
        if not part.share_ms or not inside_ns:
            return
        share_ms, busy_ms, idle_ms = (each * inside_ns // span_ns for each in (part.share_ms, *use))
        line = self._line(part.gpu)
        line.busy_share_ms += busy_ms
        line.idle_share_ms += idle_ms
        line.unmeasured_share_ms += share_ms - busy_ms - idle_ms

    def _line(self, model: str) -> FleetLine:
        if model not in self.lines and len(self.lines) >= MODELS_MAX:
            model = OTHERS
        return self.lines.setdefault(model, FleetLine(model))
