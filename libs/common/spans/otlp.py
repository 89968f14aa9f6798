"""OTLP over HTTP: the message of a batch of spans, and the connection to a collector.

The message is made with OpenTelemetry's own schema (`opentelemetry-proto`), field by field. Their
SDK and exporter take seven times as long for a span (decision 86). Only the exporter's thread
imports this file. Tests: tests/integration/test_spans.py.
"""

import gzip
import os
import ssl
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final
from urllib.parse import urlsplit

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from libs.common.spans import recording
from libs.common.spans.exporting import named_pairs
from libs.common.spans.recording import Span, Value

SEND_S: Final = 5.0
SCOPE: Final = "muster"
ANSWER_BYTES_MAX: Final = 64 << 10
# Prefix of the variables of OpenTelemetry that say how to send; those of traces alone go first.
VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_")
KINDS: Final = {
    recording.INTERNAL: Message.SPAN_KIND_INTERNAL,
    recording.SERVER: Message.SPAN_KIND_SERVER,
    recording.CLIENT: Message.SPAN_KIND_CLIENT,
    recording.PRODUCER: Message.SPAN_KIND_PRODUCER,
    recording.CONSUMER: Message.SPAN_KIND_CONSUMER,
}


def message(spans: Sequence[Span], resource: Mapping[str, str], version: str) -> bytes:
    """Return the body of a request that exports these spans."""
    request = ExportTraceServiceRequest()
    of_process = request.resource_spans.add()
    _fill(of_process.resource.attributes, resource)
    of_scope = of_process.scope_spans.add()
    of_scope.scope.name, of_scope.scope.version = SCOPE, version
    for span in spans:
        _put(of_scope.spans.add(), span)
    body: bytes = request.SerializeToString()
    return body


def _put(into: Any, span: Span) -> None:  # noqa: ANN401  a generated message
    into.trace_id = bytes.fromhex(span.trace_id)
    into.span_id = bytes.fromhex(span.span_id)
    if span.parent_id:
        into.parent_span_id = bytes.fromhex(span.parent_id)
    into.name = span.name
    into.kind = KINDS[span.kind]
    into.start_time_unix_nano = span.start_ns
    into.end_time_unix_nano = max(span.start_ns, span.end_ns)
    _fill(into.attributes, span.attributes)
    if span.error:
        into.status.code = Status.STATUS_CODE_ERROR
        into.status.message = span.error[: recording.TEXT_MAX]


def _fill(into: Any, attributes: Mapping[str, Value]) -> None:  # noqa: ANN401  a generated list
    for name, value in attributes.items():
        pair = into.add()
        pair.key = name
        if isinstance(value, str):
            pair.value.string_value = value[: recording.TEXT_MAX]
        elif isinstance(value, bool):
            pair.value.bool_value = value
        elif isinstance(value, int):
            pair.value.int_value = value
        else:
            pair.value.double_value = value


class Collector:
    """A collector at `url`, asked as OpenTelemetry's variables say."""

    def __init__(self, url: str, environ: Mapping[str, str] = os.environ) -> None:
        parts = urlsplit(url)
        self.environ = environ
        self.path = parts.path or "/"
        self.headers = {"content-type": "application/x-protobuf", **self._headers()}
        self.is_compressed = self._variable("COMPRESSION") == "gzip"
        if self.is_compressed:
            self.headers["content-encoding"] = "gzip"
        host = parts.hostname or ""
        self.connection = (
            HTTPSConnection(host, parts.port, timeout=SEND_S, context=self._tls())
            if parts.scheme == "https"
            else HTTPConnection(host, parts.port, timeout=SEND_S)
        )

    def _variable(self, name: str) -> str:
        return next(filter(None, (self.environ.get(each + name) for each in VARIABLES)), "")

    def _headers(self) -> dict[str, str]:
        pairs = named_pairs(self._variable("HEADERS"))
        return {name.lower(): value for name, value in pairs.items()}

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self._variable("CERTIFICATE") or None)
        if certificate := self._variable("CLIENT_CERTIFICATE"):
            context.load_cert_chain(certificate, self._variable("CLIENT_KEY") or None)
        return context

    def take(self, body: bytes) -> bool:
        """Send a batch; return whether the collector took it.

        It may have closed the connection since the last batch, so a failure is tried once more.
        """
        sent = gzip.compress(body) if self.is_compressed else body
        return self._post(sent) or self._post(sent)

    def _post(self, body: bytes) -> bool:
        try:
            self.connection.request("POST", self.path, body, self.headers)
            answer = self.connection.getresponse()
            answer.read(ANSWER_BYTES_MAX)
        except (OSError, HTTPException):
            self.connection.close()
            return False
        if answer.will_close or not answer.isclosed():
            self.connection.close()
        return 200 <= answer.status < 300
