"""A cluster whose nodes answer the scheduler's probes as a fabric with planted faults would."""

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import NodeId
from libs.common.state.fabric import pair_key
from services.scheduler.decide.fabric import ROUND_MORE_NS
from services.scheduler.state.fabric_rules import MS, FabricRules
from tests.given import given, registered
from tests.unit.scheduler_decisions import decisions, hear

FAST = 2_500_000


class FabricWorld:
    """A cluster whose nodes answer probes as a fabric with these faults would."""

    def __init__(self, count: int, rules: FabricRules | None = None) -> None:
        self.names = [NodeId(f"n{number:02}") for number in range(count)]
        self.capacity = dict.fromkeys(self.names, FAST)
        self.links: dict[str, int] = {}
        self.silent: dict[NodeId, None] = {}
        self.errors: dict[NodeId, str] = {}
        self.refusing: dict[NodeId, str] = {}
        nodes = [
            registered(name, 2, fabric_address=f"10.0.0.{number}:7000")
            for number, name in enumerate(self.names)
        ]
        self.state = given(*nodes)
        self.state.fabric_rules = rules or FabricRules()
        self.now_s = 1.0
        self.rounds: list[f.FabricRoundOrdered] = []

    def ask(self, *nodes: str) -> list[AnyFact]:
        names = tuple(NodeId(node) for node in nodes)
        hear(self.state, f.FabricTestRequested(test="t", nodes=names))
        return self.run()

    def run(self) -> list[AnyFact]:
        """Answer every round until no test is left; return the decisions."""
        made: list[AnyFact] = []
        for _ in range(2_000):
            facts = decisions(self.state, self.now_s)
            made += facts
            self.rounds += [fact for fact in facts if isinstance(fact, f.FabricRoundOrdered)]
            if not self.state.cluster.fabric.tests:
                return made
            if not self.report(self.rounds[-1]):
                self.now_s += (200 * MS + ROUND_MORE_NS) / 1e9 + 0.01
        raise AssertionError("the test never ends")

    def report(self, order: f.FabricRoundOrdered) -> bool:
        """Report the round; return whether all did."""
        for first, second in order.pairs:
            for node_id, peer in ((first, second), (second, first)):
                if node_id in self.silent:
                    continue
                value = min(self.capacity[node_id], self.capacity[peer])
                value = min(value, self.links.get(pair_key(node_id, peer), value))
                hear(self.state, self.report_of(order, node_id, peer, value))
        return not any(node in self.silent for pair in order.pairs for node in pair)

    def report_of(
        self, order: f.FabricRoundOrdered, node_id: NodeId, peer: NodeId, value: int
    ) -> f.FabricProbed:
        return f.FabricProbed(
            node_id=node_id,
            test=order.test,
            number=order.number,
            peer=peer,
            bandwidth=value,
            small_bandwidth=value // 2,
            rtt_ns=50_000,
            engine="tcp",
            error=self.refusing.get(node_id, self.errors.get(node_id, "")),
            refused=node_id in self.refusing,
        )

    def end(self, *nodes: str) -> f.FabricTestEnded:
        """Run a requested test and return its end."""
        return next(fact for fact in self.ask(*nodes) if isinstance(fact, f.FabricTestEnded))
