"""Orders on their way to nodes.

Every order follows from a fact that the log has acknowledged. A start order also carries the job's
spec and the addresses of its peers, which are read from the working state. That is safe: they come
from facts of other writers, which the working state takes from the log only. An order for an
attempt that is no longer the job's present one is dropped. If an order is lost on its way, the
answer to the node's next heartbeat reveals that (`orders.node_digest`).
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from libs.common import subjects
from libs.common.change import Change
from libs.common.facts import (
    AnyFact,
    FabricRoundOrdered,
    JobPlaced,
    JobPreempted,
    JobStopOrdered,
    Unknown,
)
from libs.common.messages import AnyOrder, by_bytes
from libs.common.model import NodeId
from libs.common.state.cluster import Cluster
from libs.common.transport.bus import Bus
from services.scheduler.orders import orders
from services.scheduler.orders.decision_spans import OrderSpans
from services.scheduler.state.fabric_rules import FabricRules

# The key with which this process signs the tokens of probes.
FABRIC_KEY_BYTES: Final = 32

_encode = msgspec.msgpack.Encoder().encode


class Outbox:
    """The orders that are not sent yet."""

    def __init__(self, bus: Bus, fabric_rules: FabricRules) -> None:
        self.bus = bus
        self.fabric_rules = fabric_rules
        self.fabric_key = secrets.token_bytes(FABRIC_KEY_BYTES)
        self.outgoing: asyncio.Queue[tuple[NodeId, list[AnyOrder]]] = asyncio.Queue()
        self.spans = OrderSpans()

    def acknowledged(self, working: Cluster, seq: int, facts: Sequence[AnyFact]) -> None:
        """Queue the orders that follow from facts of the scheduler that the log acknowledged."""
        for fact in facts:
            if isinstance(fact, JobPlaced | JobStopOrdered | JobPreempted):
                self._order(working, seq, fact)
            elif isinstance(fact, FabricRoundOrdered):
                self._probe(working, fact)

    def _probe(self, working: Cluster, fact: FabricRoundOrdered) -> None:
        """Queue the probes of a round, unless it is closed already."""
        test = working.fabric.tests.get(fact.test)
        if test is None or test.number != fact.number or not test.pairs:
            return
        for node_id, order in orders.probe_orders(
            working, fact, self.fabric_rules, self.fabric_key
        ):
            self.outgoing.put_nowait((node_id, [order]))

    def _order(
        self, working: Cluster, seq: int, fact: JobPlaced | JobStopOrdered | JobPreempted
    ) -> None:
        job = working.jobs.get(fact.job_id)
        if job is None or job.attempt != fact.attempt:
            return
        if isinstance(fact, JobPlaced):
            for node_id, order in orders.start_orders(working, job, fact, seq):
                self.outgoing.put_nowait((node_id, [order]))
                self.spans.queued(node_id, order, time.time_ns())
        else:
            for node_id, stop in orders.stop_orders(fact, list(job.members), seq):
                self.outgoing.put_nowait((node_id, [stop]))

    def controls(self, acked: Cluster, seq: int, facts: Iterable[AnyFact | Unknown]) -> None:
        """Queue the device controls that commit `seq` requested."""
        for node_id, control in orders.control_orders(acked, facts, seq):
            self.outgoing.put_nowait((node_id, [control]))

    def keeps(
        self,
        acked: Cluster,
        seq: int,
        facts: Iterable[AnyFact | Unknown],
        changes: Iterable[Change],
    ) -> None:
        """Queue what the nodes keep of models that commit `seq` is about."""
        for node_id, kept in orders.keep_lists(acked, facts, changes, seq):
            self.outgoing.put_nowait((node_id, [kept]))

    async def send(self, epoch: Callable[[], int]) -> None:
        """Send orders for ever, those of one node and one moment in as few messages as possible."""
        while True:
            node_id, batch = await self.outgoing.get()
            by_node: dict[NodeId, list[AnyOrder]] = {node_id: batch}
            while not self.outgoing.empty():
                node_id, more = self.outgoing.get_nowait()
                by_node.setdefault(node_id, []).extend(more)
            for node_id, waiting in by_node.items():
                for part in by_bytes(waiting):
                    await self.bus.publish(
                        subjects.orders(node_id), _encode(orders.message(epoch(), part))
                    )
                self.spans.sent(node_id, waiting, time.time_ns())
