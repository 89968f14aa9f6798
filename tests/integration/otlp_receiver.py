"""A receiver of OTLP over HTTP that decodes what it is sent, as a collector does."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

RECEIVED_S = 20.0


class Received(NamedTuple):
    """One span, and the service that recorded it."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    error: str


class Receiver:
    """What a collector got so far."""

    def __init__(self) -> None:
        self.spans: list[Received] = []
        self.url = ""
        self.paths: list[str] = []
        self.status = 200
        self.headers: Mapping[str, str] = {}
        self.resource: dict[str, Any] = {}

    async def take(self, request: web.Request) -> web.Response:
        self.paths.append(request.path)
        self.headers = request.headers
        body = await request.read()
        if self.status != web.HTTPOk.status_code:
            return web.Response(status=self.status)
        for of_service in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = self.resource = _values(of_service.resource.attributes)
            for scope in of_service.scope_spans:
                self.spans += [_span(resource["service.name"], each) for each in scope.spans]
        return web.Response(
            body=ExportTraceServiceResponse().SerializeToString(),
            content_type="application/x-protobuf",
        )

    async def trace(
        self, trace_id: str, enough: Callable[[list[Received]], bool]
    ) -> list[Received]:
        """The spans of a trace by their beginning, once there are enough. Raises TimeoutError."""
        found: list[Received] = []
        try:
            async with asyncio.timeout(RECEIVED_S):
                while True:
                    found = [span for span in self.spans if span.trace_id == trace_id]
                    if enough(found):
                        return sorted(found, key=lambda span: span.start_ns)
                    await asyncio.sleep(0.05)
        except TimeoutError as error:
            raise TimeoutError(f"only these came: {tree(found)}") from error


def _values(attributes: Any) -> dict[str, Any]:
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value") or "string_value")
        for each in attributes
    }


def _span(service: str, span: Any) -> Received:
    return Received(
        service=service,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_values(span.attributes),
        error=span.status.message if span.status.code == 2 else "",
    )


def tree(spans: list[Received]) -> list[str]:
    """The spans as lines `parent > name (service)`, in alphabetical order."""
    names = {span.span_id: span.name for span in spans}
    return sorted(
        f"{names.get(span.parent_id, '-')} > {span.name} ({span.service})" for span in spans
    )


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application(client_max_size=16 << 20)
    app.router.add_post("/{path:.*}", receiver.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    receiver.url = f"http://127.0.0.1:{port}"
    try:
        yield receiver
    finally:
        await runner.cleanup()
