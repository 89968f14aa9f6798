"""A slow node and a slow link are found among 16 namespaces, by the agent's own prober over real
links and by the scheduler's own rules: `make fabric`, on a machine that does nothing else, as root.

MUSTER_FABRIC_SEEDS is how many times faults are planted. Without it nothing runs here: what a busy
machine measures says nothing about a fabric.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from random import Random
from typing import Final

import msgspec
import pytest

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.messages import ProbeOrder
from libs.common.model import NodeId
from services.node_agent.fabric.probes.prober import Measured
from services.scheduler.decide.decide import decide
from services.scheduler.orders.orders import probe_orders
from services.scheduler.state.fabric_rules import MS, FabricRules
from services.scheduler.state.state import State
from tests.given import given, registered, tell, waiting
from tests.netns.fabric_links import Links
from tests.tidy import ROOT

COUNT: Final = 16
SEEDS: Final = int(os.environ.get("MUSTER_FABRIC_SEEDS", "0"))
RATE_KBIT: Final = 20_000
RULES: Final = FabricRules(pair_ns=400 * MS, bulk_bytes=64 << 10)
KEY: Final = b"k" * 32
TEST_S_MAX: Final = 120


class Worker:
    """The prober of one namespace."""

    def __init__(self, namespace: str, host: str) -> None:
        command = [sys.executable, "-m", "tests.netns.fabric_worker", host]
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", namespace, *command],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def read(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def order(self, order: ProbeOrder) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(order) + b"\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.wait(10)


class Fabric:
    """The namespaces, their probers, and the scheduler's state."""

    def __init__(self, links: Links) -> None:
        self.links = links
        self.names = [NodeId(f"n{index:02}") for index in range(COUNT)]
        self.workers: dict[NodeId, Worker] = {}
        self.addresses: dict[NodeId, str] = {}

    def begin(self) -> None:
        for name, space, host in zip(self.names, self.links.names, self.links.hosts, strict=True):
            self.workers[name] = Worker(space, host)
        for name, worker in self.workers.items():
            self.addresses[name] = worker.read().decode().strip()
            assert self.addresses[name], f"the prober of {name} did not start"

    def end(self) -> None:
        for worker in self.workers.values():
            worker.end()

    def test(self) -> tuple[f.FabricTestEnded, int]:
        """Run one test with the scheduler's rules; return its end and its number of rounds."""
        state = given(
            *(registered(name, 1, fabric_address=self.addresses[name]) for name in self.names)
        )
        tell(state.cluster, f.FabricTestRequested(test="t"))
        made = self.decide_until(state, f.FabricTestEnded)
        rounds = sum(1 for fact in made if isinstance(fact, f.FabricRoundOrdered))
        ended = made[-1]
        assert isinstance(ended, f.FabricTestEnded)
        return ended, rounds

    def start_gang(self, nodes: int) -> list[AnyFact]:
        """Submit a gang with a preflight; return the decisions up to its placement."""
        registrations = [
            registered(name, 1, fabric_address=self.addresses[name]) for name in self.names
        ]
        state = given(*registrations, waiting("gang", nodes=nodes, gpus=1, preflight=True))
        return self.decide_until(state, f.JobPlaced)

    def decide_until(self, state: State, last: type[AnyFact]) -> list[AnyFact]:
        """Carry out the scheduler's decisions; return them up to the first of this kind."""
        state.fabric_rules = RULES
        begun_ns = time.monotonic_ns()
        made: list[AnyFact] = []
        while True:
            now_ns = time.monotonic_ns() - begun_ns
            assert now_ns < TEST_S_MAX * 1_000 * MS, "the test takes too long"
            facts = decide(state, now_ns)
            state.apply_own(facts, now_ns)
            for fact in facts:
                made.append(fact)
                if isinstance(fact, last):
                    return made
                if isinstance(fact, f.FabricRoundOrdered):
                    for report in self.measure(list(probe_orders(state.cluster, fact, RULES, KEY))):
                        tell(state.cluster, report)

    def measure(self, orders: list[tuple[NodeId, ProbeOrder]]) -> list[AnyFact]:
        """Have the pairs of a round measure at the same time; return the reports."""
        for node_id, order in orders:
            self.workers[node_id].order(order)
        reports: list[AnyFact] = []
        for node_id, order in orders:
            found = msgspec.json.decode(self.workers[node_id].read(), type=Measured)
            reports.append(
                f.FabricProbed(
                    node_id=node_id,
                    test=order.test,
                    number=order.number,
                    peer=order.peer,
                    bandwidth=found.received.bandwidth,
                    small_bandwidth=found.received.small_bandwidth,
                    rtt_ns=found.received.rtt_ns,
                    received=found.received.received,
                    engine="tcp",
                    error=found.error,
                    refused=found.refused,
                )
            )
        return reports


@pytest.fixture(scope="module")
def fabric() -> Iterator[Fabric]:
    if not SEEDS:
        pytest.skip("it measures speeds: run `make fabric`")
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("a fabric of network namespaces needs root, `ip` and `tc`")
    links = Links(COUNT)
    found = Fabric(links)
    try:
        try:
            links.open(RATE_KBIT)
        except OSError as error:
            pytest.skip(f"no fabric of network namespaces can be made here: {error}")
        found.begin()
        yield found
    finally:
        found.end()
        links.close()


def planted(seed: int, fabric: Fabric) -> set[str]:
    """Plant one slow node and one slow link between two others; return their names."""
    chance = Random(seed)
    node, first, second = chance.sample(range(COUNT), 3)
    rates = [RATE_KBIT] * COUNT
    rates[node] = int(RATE_KBIT * chance.uniform(0.3, 0.6))
    a, b = min(first, second), max(first, second)
    fabric.links.shape(rates, {(a, b): int(RATE_KBIT * chance.uniform(0.2, 0.5))})
    return {fabric.names[node], f"{fabric.names[a]} {fabric.names[b]}"}


def suspects(ended: f.FabricTestEnded) -> set[str]:
    nodes = {str(node.node_id) for node in ended.nodes if node.reason}
    return nodes | {f"{link.a} {link.b}" for link in ended.links}


@pytest.mark.timeout(SEEDS * TEST_S_MAX + 60)
def test_a_slow_node_and_a_slow_link_among_16_are_found(fabric: Fabric) -> None:
    right = wrong = missed = rounds = 0
    begun_s = time.monotonic()
    for seed in range(SEEDS):
        true = planted(seed, fabric)
        ended, used = fabric.test()
        found, rounds = suspects(ended), rounds + used
        right, wrong = right + len(found & true), wrong + len(found - true)
        missed += len(true - found)
        print(f"seed {seed}: planted {sorted(true)}, found {sorted(found)}, {used} rounds")
    precision, recall = right / max(1, right + wrong), right / max(1, right + missed)
    print(
        f"precision {precision:.3f}, recall {recall:.3f}, {rounds} rounds, "
        f"{(time.monotonic() - begun_s) / SEEDS:.1f} s a test"
    )
    assert precision >= 0.95 and recall >= 0.95


@pytest.mark.timeout(TEST_S_MAX + 60)
def test_a_gang_does_not_start_on_a_node_that_its_preflight_found_slow(fabric: Fabric) -> None:
    rates = [RATE_KBIT] * COUNT
    rates[2] = RATE_KBIT // 2
    fabric.links.shape(rates, {})
    made = fabric.start_gang(5)
    ends = [fact for fact in made if isinstance(fact, f.PreflightEnded)]
    placed = made[-1]
    assert isinstance(placed, f.JobPlaced)
    nodes = [member.node_id for member in placed.members]
    print(f"preflights: {[(end.outcome, end.measured, end.detail) for end in ends]}, on {nodes}")
    assert ends[0].excluded == ("n02",)
    assert len(nodes) == 5 and "n02" not in nodes


@pytest.mark.timeout(TEST_S_MAX + 60)
def test_a_healthy_fabric_has_no_suspect(fabric: Fabric) -> None:
    fabric.links.shape([RATE_KBIT] * COUNT, {})
    ended, _ = fabric.test()
    assert suspects(ended) == set()
    rates = [node.capacity * 8 / 1_000 / RATE_KBIT for node in ended.nodes]
    print(f"measured parts of the set rate: {min(rates):.2f} to {max(rates):.2f}")
