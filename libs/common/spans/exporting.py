"""Sends the recorded spans to a collector by OTLP over HTTP, from a thread of its own.

OpenTelemetry's library encodes and sends them; it is imported only here, in the thread, and only
when a collector answers. It also reads the OTEL_EXPORTER_OTLP_* variables (headers, certificates,
compression, timeout) and OTEL_RESOURCE_ATTRIBUTES.

Spans are recorded only while the collector is there: from the first connection to it until it has
taken nothing for PAUSE_AFTER_S, and again when it answers. So a collector that does not exist costs
one attempt to connect in LOOK_EVERY_S. Tests: tests/integration/test_spans.py.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from libs.common import installed
from libs.common.spans import recording
from libs.common.spans.recording import Recorder, Span

if TYPE_CHECKING:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext

    from libs.common.settings.settings import Settings

# How often the thread exports, and how long it lets others run between two batches.
EXPORT_EVERY_S: Final = 1.0
BREATH_S: Final = 0.002
# Encoding a batch holds the interpreter's lock: a few milliseconds at most.
BATCH_MAX: Final = 64
# How often an absent collector is looked for, and how long one attempt may take.
LOOK_EVERY_S: Final = 5.0
LOOK_S: Final = 2.0
# Spans are recorded no longer when the collector has taken none for this time.
PAUSE_AFTER_S: Final = 30.0
# Time at the end of a process for the spans that are left.
LAST_EXPORT_S: Final = 2.0
# The variables of OpenTelemetry that name a collector.
ENDPOINT_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PORTS: Final = {"http": 80, "https": 443}
TRACES_PATH: Final = "/v1/traces"
SERVICE_PREFIX: Final = "muster-"
SCOPE: Final = "muster"
# The library's own log would repeat each failed export.
LIBRARY: Final = "opentelemetry"

logger = logging.getLogger(__name__)


class _Sender(NamedTuple):
    """The library's exporter, and what it says about this process."""

    exporter: "OTLPSpanExporter"
    resource: "Resource"
    scope: "InstrumentationScope"


class Exporter:
    """The thread that exports the spans of one process to the collector at `url`."""

    def __init__(self, recorder: Recorder, url: str, service: str, instance: str) -> None:
        self.recorder = recorder
        self.url = url
        self.service = SERVICE_PREFIX + service.replace("_", "-")
        self.instance = instance
        self._sender: _Sender | None = None
        self._took_s = 0.0
        self._said = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Export what is left, for at most LAST_EXPORT_S."""
        self._stopping.set()
        self._thread.join(LAST_EXPORT_S)
        recording.active = None

    def _run(self) -> None:
        while not self._stopping.is_set():
            if not self._takes():
                self._stopping.wait(LOOK_EVERY_S)
                continue
            self._took_s = time.monotonic()
            recording.active = self.recorder
            sender = self._sender = self._sender or self._new_sender()
            self._export_until_lost(sender)
            recording.active = None
        if self._sender is not None:
            self._drain(self._sender)

    def _takes(self) -> bool:
        """Return whether the collector listens, and takes the spans that are left from before."""
        try:
            parts = urlsplit(self.url)
            port = parts.port or PORTS.get(parts.scheme, PORTS["http"])
            socket.create_connection((parts.hostname, port), LOOK_S).close()
        except (OSError, ValueError):
            return False
        return self._sender is None or self._drain(self._sender)

    def _new_sender(self) -> _Sender:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        logging.getLogger(LIBRARY).setLevel(logging.CRITICAL)
        version = installed.version()
        resource = Resource.create(
            {
                "service.name": self.service,
                "service.namespace": SCOPE,
                "service.instance.id": self.instance,
                "service.version": version,
            }
        )
        exporter = OTLPSpanExporter(endpoint=self.url)
        return _Sender(exporter, resource, InstrumentationScope(SCOPE, version))

    def _export_until_lost(self, sender: _Sender) -> None:
        while not self._stopping.wait(EXPORT_EVERY_S):
            if self._drain(sender):
                self._took_s, self._said = time.monotonic(), False
            elif time.monotonic() - self._took_s > PAUSE_AFTER_S:
                if not self._said:
                    logger.warning(
                        "the collector of spans took none for %.0f s: none are recorded until it "
                        "takes them; check MUSTER_OTLP_ENDPOINT and the collector's log",
                        PAUSE_AFTER_S,
                    )
                self._said = True
                return

    def _drain(self, sender: _Sender) -> bool:
        """Export the spans that wait now, and return whether the collector took all of them.

        A batch that it does not take is lost.
        """
        from opentelemetry.sdk.trace.export import SpanExportResult

        while spans := self.recorder.take(BATCH_MAX):
            took = sender.exporter.export([_readable(span, sender) for span in spans])
            if took is SpanExportResult.SUCCESS:
                self.recorder.sent += len(spans)
            else:
                self.recorder.failed += len(spans)
                return False
            time.sleep(BREATH_S)
        return True


def _readable(span: Span, sender: _Sender) -> "ReadableSpan":
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanKind
    from opentelemetry.trace.status import Status, StatusCode

    attributes = {
        name: value[: recording.TEXT_MAX] if isinstance(value, str) else value
        for name, value in span.attributes.items()
    }
    failed = Status(StatusCode.ERROR, span.error[: recording.TEXT_MAX]) if span.error else Status()
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id),
        parent=_context(span.trace_id, span.parent_id) if span.parent_id else None,
        resource=sender.resource,
        attributes=attributes,
        kind=SpanKind[span.kind],
        status=failed,
        start_time=span.start_ns,
        end_time=max(span.start_ns, span.end_ns),
        instrumentation_scope=sender.scope,
    )


def _context(trace_id: str, span_id: str) -> "SpanContext":
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(
        trace_id=int(trace_id, 16),
        span_id=int(span_id, 16),
        is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )


def traces_url(settings: "Settings", environ: Mapping[str, str] = os.environ) -> str:
    """Return where spans are sent; empty if no collector is configured."""
    exact, base = (environ.get(name, "") for name in ENDPOINT_VARIABLES)
    if settings.otlp_endpoint or not exact:
        base = settings.otlp_endpoint or base
        return base.rstrip("/") + TRACES_PATH if base else ""
    return exact


def begin(settings: "Settings", service: str) -> Exporter | None:
    """Export the spans of this process, if a collector is configured. Nothing waits for it."""
    url = traces_url(settings)
    if not url:
        return None
    recorder = Recorder(settings.span_job_percent, settings.span_request_percent)
    exporter = Exporter(recorder, url, service, settings.node_id or settings.instance)
    exporter.start()
    return exporter
