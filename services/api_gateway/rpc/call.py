"""One call: its method, its messages, and its way to the client.

Tests: tests/integration/test_rpc_calls.py.
"""

import asyncio
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from starlette.types import Scope

from libs.common.settings.settings import Settings
from libs.rpc.messages import class_of, services
from services.api_gateway.access.auth import bearer
from services.api_gateway.problems import Problem
from services.api_gateway.rpc import status
from services.api_gateway.rpc.conversion import Fields, encoded, fields_of
from services.api_gateway.rpc.held_bytes import HeldBytes
from services.api_gateway.rpc.methods import PACKAGE, Method
from services.api_gateway.rpc.requests import Asked, scope_of


class Ended(Exception):
    """A call that was not carried out."""

    def __init__(self, refusal: status.Refusal) -> None:
        super().__init__(refusal.detail)
        self.refusal = refusal


class Call:
    """One call: its method, its messages, and its way to the client."""

    def __init__(self, settings: Settings, method: Method, context: Any) -> None:  # noqa: ANN401  of gRPC
        self.settings = settings
        self.method = method
        self.context = context
        descriptor = services()[f"{PACKAGE}.{method.service}"].methods_by_name[method.name]
        self.request = descriptor.input_type
        self.answer = descriptor.output_type
        self.metadata = tuple(context.invocation_metadata() or ())
        self.held = HeldBytes()

    @property
    def key(self) -> str:
        given = [value for name, value in self.metadata if name == "authorization"]
        return bearer(given[-1]) if given and isinstance(given[-1], str) else ""

    def scope(self, request: Asked, kind: str = "http") -> Scope:
        return scope_of(self.method, request, self.metadata, self.context.peer(), kind)

    async def read(self) -> bytes | None:
        """Return the next message of the client; None after its last one."""
        data = await self.context.read()
        return None if data is grpc.aio.EOF else bytes(data)

    def decoded(self, data: bytes | None) -> Fields:
        """Return the fields of a message. Raises Problem 400."""
        if data is None:
            raise Problem(400, f"{self.method.name} got no message: send one")
        try:
            return fields_of(class_of(self.request).FromString(data))
        except (DecodeError, ValueError, RecursionError) as error:
            raise Problem(
                400,
                f"the message is not a valid {self.request.name}: {error}: make it with "
                "proto/muster/v1 of this version",
            ) from error

    async def fields(self) -> Fields:
        """Return the fields of the first message. Raises Problem 400, 408 and 429."""
        within_s = self.settings.model_body_ms / 1_000
        try:
            async with asyncio.timeout(within_s):
                data = await self.read()
        except TimeoutError as error:
            raise Problem(
                408, f"{self.method.name} got no message within {within_s:g} s: send it at once"
            ) from error
        self.held.take(len(data or b""))
        return self.decoded(data)

    def keep(self, size: int) -> None:
        """Count the bytes of an answer's part that is not whole yet. Raises Ended."""
        try:
            self.held.keep(size)
        except Problem as problem:
            raise Ended(status.of_problem(problem)) from problem

    async def write(self, value: object) -> None:
        """Send a message. Raises Ended if the client does not read."""
        unread_s = self.settings.gateway_unread_ms / 1_000
        try:
            async with asyncio.timeout(unread_s):
                await self.context.write(encoded(self.answer, value))
        except TimeoutError as error:
            text = f"the client has read nothing for {unread_s:g} s, so the call was ended"
            raise Ended(status.of_problem(Problem(408, text))) from error
