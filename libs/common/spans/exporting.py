"""Sends the recorded spans to a collector by OTLP over HTTP, from a thread of its own.

What it needs for that (`otlp.py`) is imported in the thread, and only when a collector answers.

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
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from libs.common import installed
from libs.common.spans import recording
from libs.common.spans.recording import Recorder

if TYPE_CHECKING:
    from libs.common.settings.settings import Settings
    from libs.common.spans.otlp import Collector

# How often the thread exports, and how long it lets others run between two batches.
EXPORT_EVERY_S: Final = 1.0
BREATH_S: Final = 0.002
# Encoding a batch takes about 2 ms.
BATCH_MAX: Final = 256
# How often an absent collector is looked for, and how long one attempt may take.
LOOK_EVERY_S: Final = 5.0
LOOK_S: Final = 2.0
# Spans are recorded no longer when the collector has taken none for this time.
PAUSE_AFTER_S: Final = 30.0
# How often dropped spans are logged.
SAY_EVERY_S: Final = 60.0
# Time at the end of a process for the spans that are left.
LAST_EXPORT_S: Final = 2.0
# The variables of OpenTelemetry that name a collector.
ENDPOINT_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PORTS: Final = {"http": 80, "https": 443}
TRACES_PATH: Final = "/v1/traces"
SERVICE_PREFIX: Final = "muster-"
NAMESPACE: Final = "muster"
RESOURCE_VARIABLE: Final = "OTEL_RESOURCE_ATTRIBUTES"

logger = logging.getLogger(__name__)


class Exporter:
    """The thread that exports the spans of one process to the collector at `url`."""

    def __init__(self, recorder: Recorder, url: str, service: str, instance: str) -> None:
        self.recorder = recorder
        self.url = url
        self.version = installed.version()
        self.resource = {
            **named_pairs(os.environ.get(RESOURCE_VARIABLE, "")),
            "service.name": SERVICE_PREFIX + service.replace("_", "-"),
            "service.namespace": NAMESPACE,
            "service.instance.id": instance,
            "service.version": self.version,
        }
        self._collector: Collector | None = None
        self._took_s = 0.0
        self._said = False
        self._dropped = 0
        self._dropped_s = -SAY_EVERY_S
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
            collector = self._collector = self._collector or self._new_collector()
            if collector is None:
                return
            self._took_s = time.monotonic()
            recording.active = self.recorder
            self._export_until_lost(collector)
            recording.active = None
        if self._collector is not None:
            self._drain(self._collector)

    def _takes(self) -> bool:
        """Return whether the collector listens, and takes the spans that are left from before."""
        try:
            parts = urlsplit(self.url)
            port = parts.port or PORTS.get(parts.scheme, PORTS["http"])
            socket.create_connection((parts.hostname, port), LOOK_S).close()
        except (OSError, ValueError):
            return False
        return self._collector is None or self._drain(self._collector)

    def _new_collector(self) -> "Collector | None":
        """Return the collector; None if its settings cannot be used."""
        from libs.common.spans.otlp import Collector

        try:
            return Collector(self.url)
        except (OSError, ValueError) as error:
            logger.error(
                "no spans are recorded: MUSTER_OTLP_ENDPOINT or a certificate of the "
                "OTEL_EXPORTER_OTLP_* variables cannot be used: %s",
                error,
            )
            return None

    def _export_until_lost(self, collector: "Collector") -> None:
        while not self._stopping.wait(EXPORT_EVERY_S):
            self._say_dropped()
            if self._drain(collector):
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

    def _say_dropped(self) -> None:
        """Log how many spans found the queue full, at most once in SAY_EVERY_S."""
        now_s, dropped = time.monotonic(), self.recorder.dropped - self._dropped
        if dropped and now_s - self._dropped_s > SAY_EVERY_S:
            self._dropped += dropped
            self._dropped_s = now_s
            logger.warning(
                "%d spans were dropped, because the collector takes them too slowly: lower "
                "MUSTER_SPAN_REQUEST_PERCENT or MUSTER_SPAN_JOB_PERCENT",
                dropped,
            )

    def _drain(self, collector: "Collector") -> bool:
        """Export the spans that wait now, and return whether the collector took all of them.

        A batch that it does not take is lost.
        """
        from libs.common.spans.otlp import message

        while spans := self.recorder.take(BATCH_MAX):
            if collector.take(message(spans, self.resource, self.version)):
                self.recorder.sent += len(spans)
            else:
                self.recorder.failed += len(spans)
                return False
            time.sleep(BREATH_S)
        return True


def named_pairs(text: str) -> dict[str, str]:
    """Return the pairs of a variable of OpenTelemetry: `name=value,name=value`, percent-encoded."""
    pairs = (each.partition("=") for each in text.split(","))
    return {name.strip(): unquote(value.strip()) for name, mark, value in pairs if mark and name}


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
