"""The gateway's metrics, in a registry of their own: requests, latency, lag, how full the log is."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

BUCKETS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Telemetry:
    """Labels are routes, never paths: a path holds a job's id, and the number of series must stay bounded."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("muster_gateway_requests", "Requests answered", ("method", "route", "status"), registry=self.registry)
        self.latency = Histogram(
            "muster_gateway_request_seconds", "Until the answer began", ("method", "route"), buckets=BUCKETS_S, registry=self.registry
        )
        self.seq = Gauge("muster_gateway_seq", "Last stream sequence folded", registry=self.registry)
        self.lag = Gauge("muster_gateway_lag_commits", "Commits in the log that are not folded yet", registry=self.registry)
        self.fill = Gauge("muster_gateway_log_filled_ratio", "Used part of the stream's bytes", registry=self.registry)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        self.requests.labels(method, route, str(status)).inc()
        self.latency.labels(method, route).observe(seconds)

    def survey(self, seq: int, lag: int, fill: float) -> None:
        self.seq.set(seq)
        self.lag.set(lag)
        self.fill.set(fill)

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)
