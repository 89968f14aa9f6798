"""The gateway's metrics, in their own registry: requests, latency, lag, the log's fill level."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder

from libs.common.facts import ModelUse
from libs.common.state.cluster import Cluster, Endpoint
from services.api_gateway.metrics import collector
from services.api_gateway.metrics.job_counters import JobCounters
from services.api_gateway.metrics.model_labels import OTHER_MODELS, ModelLabels
from services.api_gateway.serving.late_binding import LateBinding

if TYPE_CHECKING:
    from services.api_gateway.gateway import Gateway

BUCKETS_S: Final = (
    0.0005,
    0.001,
    0.002,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)


Metric = TypeVar("Metric", Counter, Gauge, Histogram)

# Keys, by model, beyond this number share one series for each tenant.
KEYS_MAX: Final = 2_000
# The last line of OpenMetrics.
END_OF_METRICS: Final = b"# EOF\n"
# A whole GPU for a second, in hundredths of a GPU times milliseconds.
SHARE_MS: Final = 100_000


class Series(Generic[Metric]):
    """The series of one metric that were used, by the values of their labels.

    Finding one here costs less than `labels`, which every request would call several times.
    """

    def __init__(self, metric: Metric) -> None:
        self.metric: Metric = metric
        self.found: dict[tuple[str | int, ...], Metric] = {}

    def of(self, *values: str | int) -> Metric:
        found = self.found.get(values)
        if found is None:
            found = self.found[values] = self.metric.labels(*values)
        return found

    def remove(self, first: str) -> None:
        """Remove the series whose first label has this value."""
        for values in [each for each in self.found if each[0] == first]:
            del self.found[values]
            self.metric.remove(*values)


def _by_model(registry: CollectorRegistry, kind: type[Metric], name: str, help_text: str) -> Metric:
    return kind(name, help_text, ("model",), registry=registry)


class ModelTelemetry:
    """Metrics of requests to models.

    Only names of deployed models are counted. Each has series of its own (`model_labels.py`).
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        by_model = partial(_by_model, registry)
        self.requests = Counter(
            "muster_model_requests",
            "Requests ended; 499: the client went away",
            ("model", "route", "status", "stream"),
            registry=registry,
        )
        self.first_token = Histogram(
            "muster_model_first_token_seconds",
            "Until the first event of a stream",
            ("model",),
            buckets=BUCKETS_S,
            registry=registry,
        )
        self.open = by_model(Gauge, "muster_model_requests_open", "Requests that are open now")
        self.retries = by_model(
            Counter,
            "muster_model_retries",
            "Replicas that failed before the client was sent anything",
        )
        self.hedges = by_model(
            Counter,
            "muster_model_hedges",
            "Requests that were sent to a second replica because the first one was slow",
        )
        self.continuations = by_model(
            Counter,
            "muster_model_continuations",
            "Broken streams that were continued at another replica",
        )
        self.batches = by_model(
            Counter,
            "muster_model_batches",
            "Requests to replicas that joined several requests of clients",
        )
        self.waiting = by_model(
            Gauge,
            "muster_model_requests_waiting",
            "Requests that wait in this gateway for a replica with room",
        )
        self.waiting_tokens = by_model(
            Gauge,
            "muster_model_waiting_tokens",
            "Input tokens of the waiting requests",
        )
        self.jain = Gauge(
            "muster_model_jain_index",
            "Jain's index of the shares of waiting tenants in the last minute; 1: all are equal",
            ("model", "priority"),
            registry=registry,
        )
        self._labels = ModelLabels()
        self._label = self._labels.of
        self._open = Series(self.open)
        self._ended = Series(self.requests)

    def forget(self, is_gone: Callable[[str], bool]) -> None:
        """Remove the series of models that are gone, if their number is at its bound."""
        by_model = (self.first_token, self.retries, self.hedges, self.continuations, self.batches)
        for label in self._labels.forget(is_gone):
            self._open.remove(label)
            self._ended.remove(label)
            for metric in by_model:
                with suppress(KeyError):  # of versions that miss a series
                    metric.remove(label)

    def began(self, model: str) -> None:
        self._open.of(self._labels.began(model)).inc()

    def ended(
        self,
        model: str,
        route: str,
        status: int,
        streamed: bool,
        first_s: float,
        trace_id: str = "",
    ) -> None:
        label = self._labels.ended(model)
        self._open.of(label).dec()
        self._ended.of(label, route, status, "true" if streamed else "false").inc()
        if streamed and first_s:
            self.first_token.labels(label).observe(first_s, exemplar(trace_id))

    def queued(
        self, queues: Mapping[str, LateBinding[Endpoint]], priorities: tuple[str, ...]
    ) -> None:
        """Take over the present state of all models' queues, and drop the series of deleted ones.

        Models that share a series are summed; of their Jain indices the lowest counts.
        """
        for gauge in (self.waiting, self.waiting_tokens, self.jain):
            gauge.clear()
        lowest: dict[tuple[str, str], float] = {}
        for model, rules in queues.items():
            label = self._label(model)
            self.waiting.labels(label).inc(rules.waiting_requests)
            self.waiting_tokens.labels(label).inc(rules.waiting_tokens)
            for band, priority in enumerate(priorities):
                index = min(rules.shares.jain(band), lowest.get((label, priority), 1.0))
                lowest[label, priority] = index
                self.jain.labels(label, priority).set(index)

    def retried(self, model: str) -> None:
        self.retries.labels(self._label(model)).inc()

    def hedged(self, model: str) -> None:
        self.hedges.labels(self._label(model)).inc()

    def continued(self, model: str) -> None:
        self.continuations.labels(self._label(model)).inc()

    def batched(self, model: str) -> None:
        self.batches.labels(self._label(model)).inc()


class UsageTelemetry:
    """Metrics of what keys used of models, counted every few seconds.

    Keys beyond KEYS_MAX share one series for each tenant, without user and key. They name tenants
    and users, so they are shown to operators only.
    """

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        labels = ("model", "tenant", "user", "key")
        self.tokens = Counter(
            "muster_model_tokens",
            "Tokens of requests that ended, by the replicas' count",
            (*labels, "direction"),
            registry=registry,
        )
        self.gpu_seconds = Counter(
            "muster_model_gpu_seconds",
            "GPU time of requests that ended; requests at a replica share its time equally",
            labels,
            registry=registry,
        )
        self._known: dict[tuple[str, str, str, str], None] = {}

    def forget(self, is_gone: Callable[[str, str], bool]) -> None:
        """Remove the series of models and keys that are gone, if their number is at its bound.

        `is_gone` takes a model and the id of a key.
        """
        if len(self._known) < KEYS_MAX:
            return
        for labels in [each for each in self._known if is_gone(each[0], each[3])]:
            del self._known[labels]
            for direction in ("input", "output"):
                self.tokens.remove(*labels, direction)
            self.gpu_seconds.remove(*labels)

    def note(self, use: ModelUse) -> None:
        labels = (use.model, use.tenant, use.user, use.key_id)
        if labels not in self._known and len(self._known) >= KEYS_MAX:
            labels = (OTHER_MODELS, use.tenant, "", "")
        else:
            self._known[labels] = None
        self.tokens.labels(*labels, "input").inc(use.input_tokens)
        self.tokens.labels(*labels, "output").inc(use.output_tokens)
        self.gpu_seconds.labels(*labels).inc(use.share_ms / SHARE_MS)


class FabricTelemetry:
    """Metrics of the measured fabric, from the verdicts of its tests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.capacity = Gauge(
            "muster_fabric_node_bytes_per_second",
            "Bandwidth that a node's links carry, as measured last",
            ("node",),
            registry=registry,
        )
        self.suspect = Gauge(
            "muster_fabric_node_suspect",
            "1 if the last test of the fabric suspects the node",
            ("node",),
            registry=registry,
        )
        self.links = Gauge(
            "muster_fabric_suspect_links", "Links that are slower than usual", registry=registry
        )
        self.racks = Gauge("muster_fabric_racks", "Measured racks", registry=registry)
        self.drains = Gauge(
            "muster_fabric_drained_nodes", "Nodes that the scheduler drained", registry=registry
        )

    def survey(self, cluster: Cluster) -> None:
        """Take over the present verdicts."""
        for node_id, view in cluster.fabric.nodes.items():
            self.capacity.labels(node_id).set(view.capacity)
            self.suspect.labels(node_id).set(int(bool(view.reason)))
        self.links.set(len(cluster.fabric.links))
        self.racks.set(len(dict.fromkeys(cluster.fabric.racks.values())))
        self.drains.set(sum(node.is_drained for node in cluster.nodes.values()))


class SocketTelemetry:
    """Metrics of the WebSockets at /v1/ws."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.connections = Gauge(
            "muster_gateway_websockets", "WebSockets at /v1/ws that are open now", registry=registry
        )
        self.frames = Counter(
            "muster_gateway_websocket_frames",
            "Frames sent to the clients of /v1/ws",
            registry=registry,
        )
        self.closed = Counter(
            "muster_gateway_websockets_closed",
            "WebSockets at /v1/ws that the gateway closed, by the reason",
            ("reason",),
            registry=registry,
        )


class Telemetry:
    """The metrics of one gateway.

    Labels are routes, not paths: paths contain job ids, and the number of series must stay bounded.
    With a gateway, the metrics of its cluster are included.
    """

    def __init__(self, gateway: "Gateway | None" = None) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "muster_gateway_requests",
            "Requests answered",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self.latency = Histogram(
            "muster_gateway_request_seconds",
            "Until the answer began",
            ("method", "route"),
            buckets=BUCKETS_S,
            registry=self.registry,
        )
        self._answered = Series(self.requests)
        self._latency = Series(self.latency)
        self.seq = Gauge(
            "muster_gateway_seq", "Last stream sequence folded", registry=self.registry
        )
        self.lag = Gauge(
            "muster_gateway_lag_commits",
            "Commits in the log that are not folded yet",
            registry=self.registry,
        )
        self.models = ModelTelemetry(self.registry)
        self.usage = UsageTelemetry()
        self.fabric = FabricTelemetry(self.registry)
        self.sockets = SocketTelemetry(self.registry)
        self.jobs = JobCounters(self.registry)
        if gateway is not None:
            collector.register(gateway, self.registry, self.usage.registry)
        self.fill = Gauge(
            "muster_gateway_log_filled_ratio",
            "Used part of the stream's bytes",
            registry=self.registry,
        )
        self.tasks = Gauge(
            "muster_gateway_tasks", "Tasks of the event loop", registry=self.registry
        )

    def answered(
        self, method: str, route: str, status: int, seconds: float, trace_id: str = ""
    ) -> None:
        self._answered.of(method, route, status).inc()
        self._latency.of(method, route).observe(seconds, exemplar(trace_id))

    def survey(self, cluster: Cluster, lag: int, fill: float, tasks: int = 0) -> None:
        self.tasks.set(tasks)
        self.seq.set(cluster.seq)
        self.fabric.survey(cluster)
        self.lag.set(lag)
        self.fill.set(fill)

    def text(self, with_usage: bool = False) -> bytes:
        """Return the metrics in the Prometheus text format, with those of each key if asked."""
        return self.exposed("", with_usage)[0]

    def exposed(self, accept: str, with_usage: bool = False) -> tuple[bytes, str]:
        """Return the metrics in a format that the scraper accepts, and its content type.

        The text is in the Prometheus format, or in OpenMetrics if the scraper accepts that: only
        there a histogram names traces as exemplars.
        """
        encode, content_type = choose_encoder(accept)
        own = encode(self.registry)
        if with_usage:
            own = own.removesuffix(END_OF_METRICS) + encode(self.usage.registry)
        return own, content_type


def exemplar(trace_id: str) -> dict[str, str] | None:
    """Return the exemplar of an observation: the trace that it belongs to."""
    return {"trace_id": trace_id} if trace_id else None
