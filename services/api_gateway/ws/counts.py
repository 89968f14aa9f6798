"""The topics `summary` and `metrics`: counts of the cluster, and numbers that the gateway has
anyway.

Both are sent at most once a second. Their values are counted once for all clients that may see the
same, and the devices of a node only when it has changed. Tests: tests/unit/test_ws_counts.py.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from libs.common.life import gpu_life
from libs.common.model import WHOLE_GPU, NodeId
from libs.common.state.cluster import Cluster, Node, node_gpus
from services.api_gateway.access import roles
from services.api_gateway.access.roles import Principal
from services.api_gateway.times import rfc3339
from services.api_gateway.views.fleet import is_on_map
from services.api_gateway.views.interests import Interest
from services.api_gateway.views.nodes import gpu_health, gpu_state, scheduler_shown
from services.api_gateway.ws.frames import Name, encoded
from services.api_gateway.ws.topics import Batch

if TYPE_CHECKING:
    from services.api_gateway.gateway import Gateway

SUMMARY: Final = "summary"
METRICS: Final = "metrics"
EVERY_S: Final = 1.0
COUNT_SLICE: Final = 100


class NodeCount(NamedTuple):
    """The devices of one node, as counted. `held` is in hundredths of a device."""

    state: str
    gpus: int
    busy: int
    unhealthy: int
    held: int
    states: Counter[str]


def count_node(cluster: Cluster, node: Node) -> NodeCount:
    """Return what a node adds to the counts."""
    views = node_gpus(cluster, node)
    return NodeCount(
        state=node.state,
        gpus=len(views),
        busy=sum(1 for view in views if view.holds),
        unhealthy=sum(1 for view in views if gpu_health(view) != gpu_life.HEALTHY),
        held=sum(view.held for view in views),
        states=Counter(gpu_state(cluster, view) for view in views),
    )


def total(nodes: dict[NodeId, NodeCount], jobs: Counter[str]) -> dict[str, object]:
    """Return the summary of the cluster."""
    states: Counter[str] = Counter()
    for count in nodes.values():
        states.update(count.states)
    gpus = sum(count.gpus for count in nodes.values())
    held = sum(count.held for count in nodes.values())
    return {
        "jobs": {state: count for state, count in sorted(jobs.items()) if count},
        "nodes": dict(sorted(Counter(count.state for count in nodes.values()).items())),
        "gpus": {
            "total": gpus,
            "busy": sum(count.busy for count in nodes.values()),
            "unhealthy": sum(count.unhealthy for count in nodes.values()),
            "free_share": max(0, gpus * WHOLE_GPU - held),
            "states": dict(sorted(states.items())),
        },
    }


class Value(NamedTuple):
    seq: int
    data: bytes


class Counts:
    """The values of one gateway: each is made at most every EVERY_S."""

    def __init__(self, gateway: "Gateway") -> None:
        self.gateway = gateway
        self._watcher = gateway.waiting.feeds.enter(Interest(devices=True), "")
        self._nodes: dict[NodeId, NodeCount] | None = None
        # The nodes that are to be counted.
        self._pending: dict[NodeId, None] = {}
        self._values: dict[tuple[str, str | None], tuple[float, Value]] = {}
        self._turn = asyncio.Lock()

    async def summary(self, principal: Principal) -> Value:
        return await self._value((SUMMARY, None), self._summary)

    async def metrics(self, principal: Principal) -> Value:
        only = roles.eyes(principal)
        return await self._value((METRICS, only), lambda: _metrics(self.gateway, only))

    async def _value(self, name: tuple[str, str | None], make: Callable[[], object]) -> Value:
        now_s = asyncio.get_running_loop().time()
        async with self._turn:
            known = self._values.get(name)
            if known is not None and now_s - known[0] < EVERY_S:
                return known[1]
            await self._count()
            value = Value(self.gateway.cluster.seq, encoded(make()))
            self._values[name] = (now_s, value)
            return value

    async def _count(self) -> None:
        """Count the nodes that changed since the last time.

        This runs in the task of a subscriber, which may be cancelled in the middle: the next one
        goes on with the nodes that are left.
        """
        cluster = self.gateway.cluster
        _, changed = self._watcher.take()
        if self._nodes is None:
            self._nodes, changed = {}, list(cluster.nodes)
        self._pending.update(dict.fromkeys(changed))
        for number, node_id in enumerate(list(self._pending), start=1):
            node = cluster.nodes.get(node_id)
            if node is not None and is_on_map(node):
                self._nodes[node_id] = count_node(cluster, node)
            else:
                self._nodes.pop(node_id, None)
            del self._pending[node_id]
            if number % COUNT_SLICE == 0:
                await asyncio.sleep(0)

    def _summary(self) -> dict[str, object]:
        assert self._nodes is not None, "the nodes were counted"
        return total(self._nodes, self.gateway.index.counts)


def _metrics(gateway: "Gateway", only: str | None) -> dict[str, object]:
    """Return the numbers that a principal of this tenant may see; None for all."""
    models = []
    for name, queue in gateway.queues.queues.items():
        served = gateway.models.get(name)
        if served is not None and only in (None, served.tenant):
            models.append(
                {
                    "model": name,
                    "tenant": served.tenant,
                    "ready": len(gateway.models.ready(name)),
                    "waiting": queue.rules.waiting_requests,
                    "waiting_tokens": queue.rules.waiting_tokens,
                }
            )
    return {
        "at": rfc3339(gateway.clock.wall_ns()),
        "lag": gateway.lag,
        "log_filled": round(gateway.fill, 4),
        "scheduler": scheduler_shown(gateway.pulse),
        "models": models,
    }


async def value_batches(
    counts: Counts, principal: Principal, event: str, name: Name
) -> AsyncGenerator[Batch, None]:
    """Yield the value, then each change of it."""
    make = counts.summary if event == SUMMARY else counts.metrics
    last = b""
    while True:
        value = await make(principal)
        if value.data != last:
            last = value.data
            yield Batch([name.frame(event, value.seq, value.data)], 0)
        await asyncio.sleep(EVERY_S)
