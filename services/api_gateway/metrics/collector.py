"""Metrics that are read from the state at each scrape, as collectors of Prometheus's library.

Everyone may scrape a gateway, so an answer serves all who ask within FRESH_S. Test:
tests/integration/test_gateway_metrics.py.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from services.api_gateway.metrics.cluster_rows import Row, cluster_rows, tenant_rows
from services.api_gateway.metrics.control_rows import plane_rows, vitals_rows
from services.api_gateway.metrics.declared import COUNTER, Declared

if TYPE_CHECKING:
    from services.api_gateway.gateway import Gateway

FRESH_S: Final = 1.0
NS: Final = 1_000_000_000


def register(gateway: "Gateway", public: CollectorRegistry, operators: CollectorRegistry) -> None:
    """Add the metrics of this gateway's state to its registries."""
    public.register(ClusterCollector(gateway))
    operators.register(TenantCollector(gateway))


class ClusterCollector(Collector):
    """The metrics of the cluster and its control plane."""

    def __init__(self, gateway: "Gateway") -> None:
        self.gateway = gateway
        self.families: list[Metric] = []
        self.fresh_until_ns = 0

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the library would read the state to learn the names."""
        return ()

    def collect(self) -> Iterable[Metric]:
        now_ns = self.gateway.clock.boot_ns()
        if now_ns >= self.fresh_until_ns:
            self.families = families(self._rows())
            self.fresh_until_ns = now_ns + int(FRESH_S * NS)
        return self.families

    def _rows(self) -> Iterator[Row]:
        gateway = self.gateway
        if not gateway.caught_up:
            return
        pulse, wall_ns = gateway.pulse, gateway.clock.wall_ns()
        heard_ns = {node_id: pulse.heard_ns(node_id) for node_id in pulse.vitals.heard_ms_ago}
        yield from cluster_rows(gateway.cluster, gateway.index.counts, heard_ns, wall_ns)
        if pulse.at_ns:
            yield from vitals_rows(pulse.vitals)
        if pulse.plane is not None:
            yield from plane_rows(pulse.plane, gateway.cluster.seq)


class TenantCollector(Collector):
    """The metrics of tenants."""

    def __init__(self, gateway: "Gateway") -> None:
        self.gateway = gateway

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        return families(tenant_rows(self.gateway.cluster)) if self.gateway.caught_up else ()


def families(rows: Iterable[Row]) -> list[Metric]:
    """Return the rows as families, in the order in which their metrics first appear."""
    found: dict[Declared, Metric] = {}
    for row in rows:
        family = found.get(row.metric)
        if family is None:
            family = found[row.metric] = _family(row.metric)
        name = row.metric.name
        family.add_sample(name, dict(zip(row.metric.labels, row.labels, strict=True)), row.value)
    return list(found.values())


def _family(metric: Declared) -> Metric:
    if metric.kind == COUNTER:
        return CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
    return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
