"""Health and reflection, which need no key: whether the gateway serves, and its services.

They show what /readyz and /openapi.json show. At most STRANGERS_MAX such calls are open, and a
reflection ends when its client is silent. Tests: tests/integration/test_rpc_server.py.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from services.api_gateway.rpc import status

HEALTH: Final = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
REFLECTIONS: Final = (
    "grpc.reflection.v1alpha.ServerReflection",
    "grpc.reflection.v1.ServerReflection",
)
STRANGERS_MAX: Final = 256
# A reflection client asks its questions one after the other.
SILENCE_S: Final = 10.0
# Interval at which a watched health is read again.
LOOK_S: Final = 1.0

Handler = Callable[[Any, Any], Awaitable[None]]


class Introspection:
    """The handlers of both services. `serving` says whether a service answers; None: not known."""

    def __init__(self, names: tuple[str, ...], serving: Callable[[str], bool | None]) -> None:
        known = (*names, HEALTH, *REFLECTIONS)
        self.serving = serving
        self.open = 0
        self.reflection = reflection.aio.ReflectionServicer(service_names=known)
        self.handlers: dict[str, Handler] = {
            f"/{HEALTH}/Check": self._check,
            f"/{HEALTH}/Watch": self._watch,
            **{f"/{name}/ServerReflectionInfo": self._reflect for name in REFLECTIONS},
        }

    async def serve(self, handler: Handler, context: Any) -> None:  # noqa: ANN401  of gRPC
        """Carry out one call."""
        if self.open >= STRANGERS_MAX:
            code = grpc.StatusCode.RESOURCE_EXHAUSTED
            await context.abort(code, f"{STRANGERS_MAX} such calls are open: try again later")
        self.open += 1
        try:
            await handler(None, context)
        except TimeoutError:
            code = grpc.StatusCode.DEADLINE_EXCEEDED
            await context.abort(code, f"the call got no message within {SILENCE_S:g} s")
        except DecodeError as error:
            code = grpc.StatusCode.INVALID_ARGUMENT
            await context.abort(
                code, f"the message is not valid: {error}"[: status.DETAIL_CHARS_MAX]
            )
        finally:
            self.open -= 1

    async def _health(self, context: Any) -> str:  # noqa: ANN401  of gRPC
        """Return the service that a health request names."""
        async with asyncio.timeout(SILENCE_S):
            data = await context.read()
        if data is grpc.aio.EOF:
            return ""
        return str(health_pb2.HealthCheckRequest.FromString(data).service)

    def _state(self, name: str) -> bytes:
        kinds = health_pb2.HealthCheckResponse
        found = {True: kinds.SERVING, False: kinds.NOT_SERVING, None: kinds.SERVICE_UNKNOWN}
        data: bytes = kinds(status=found[self.serving(name)]).SerializeToString()
        return data

    async def _check(self, _: Any, context: Any) -> None:  # noqa: ANN401  of gRPC
        name = await self._health(context)
        if self.serving(name) is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"service {name[:64]!r} is not known")
        await context.write(self._state(name))

    async def _watch(self, _: Any, context: Any) -> None:  # noqa: ANN401  of gRPC
        name, last = await self._health(context), b"-"
        while True:
            if (state := self._state(name)) != last:
                last = state
                await context.write(state)
            await asyncio.sleep(LOOK_S)

    async def _reflect(self, _: Any, context: Any) -> None:  # noqa: ANN401  of gRPC
        async for answer in self.reflection.ServerReflectionInfo(_questions(context), context):
            await context.write(answer.SerializeToString())


async def _questions(context: Any) -> AsyncIterator[Any]:  # noqa: ANN401  of gRPC
    while True:
        try:
            async with asyncio.timeout(SILENCE_S):
                data = await context.read()
        except TimeoutError:
            return
        if data is grpc.aio.EOF:
            return
        yield reflection_pb2.ServerReflectionRequest.FromString(data)
