"""A gateway with its gRPC server, a client of it, and what a client learns by reflection."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import Message
from grpc_reflection.v1alpha import reflection_pb2

from libs.rpc.messages import PACKAGE, class_of, services
from services.api_gateway.http.app import create_app
from services.api_gateway.rpc.server import RpcServer
from tests.integration.gateway_world import KEY, World, gateway_world

LONGEST_S = 20.0
SERVERS_FAULT = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)


def method_of(name: str) -> MethodDescriptor:
    """The method of a name such as Jobs/GetJob."""
    service, _, method = name.partition("/")
    return services()[f"{PACKAGE}.{service}"].methods_by_name[method]


class Client:
    """Calls of one channel with one key."""

    def __init__(self, channel: grpc.aio.Channel, key: str = KEY) -> None:
        self.channel = channel
        self.key = key

    def with_key(self, key: str) -> "Client":
        return Client(self.channel, key)

    def metadata(self, *more: tuple[str, str]) -> tuple[tuple[str, str], ...]:
        return (*((("authorization", f"Bearer {self.key}"),) if self.key else ()), *more)

    def call(
        self,
        name: str,
        /,
        *,
        asks: Any = None,
        metadata: tuple[tuple[str, str], ...] = (),
        timeout: float = LONGEST_S,
        **fields: Any,
    ) -> Any:
        """Begin a call. `asks` are the requests of a stream; otherwise `fields` are the request."""
        method = method_of(name)
        first = "stream" if method.client_streaming else "unary"
        last = "stream" if method.server_streaming else "unary"
        begin = getattr(self.channel, f"{first}_{last}")(
            f"/{method.containing_service.full_name}/{method.name}",
            request_serializer=_as_bytes,
            response_deserializer=class_of(method.output_type).FromString,
        )
        request = class_of(method.input_type)(**fields) if asks is None else asks
        return begin(request, metadata=self.metadata(*metadata), timeout=timeout)

    async def fails(self, name: str, /, **more: Any) -> grpc.aio.AioRpcError:
        """The error of a call that must not succeed."""
        try:
            found = self.call(name, **more)
            if method_of(name).server_streaming:
                async for _ in found:
                    pass
            else:
                await found
        except grpc.aio.AioRpcError as error:
            return error
        raise AssertionError(f"{name} succeeded")

    async def all(self, name: str, /, **more: Any) -> list[Any]:
        return [each async for each in self.call(name, **more)]


def _as_bytes(value: Message | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.SerializeToString()


class RpcWorld:
    """`world` is the gateway over HTTP."""

    def __init__(self, world: World, server: RpcServer, client: Client) -> None:
        self.world = world
        self.server = server
        self.client = client

    async def quiet(self) -> None:
        """Wait until no call is open and no place is taken."""
        async with asyncio.timeout(LONGEST_S):
            while self.server.calls.open.held or self.world.gateway.places.by_tenant:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def answering(world: World) -> AsyncIterator[RpcWorld]:
    """The gRPC server of a gateway."""
    server = RpcServer(world.gateway, create_app(world.gateway))
    await server.start("127.0.0.1", 0)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            yield RpcWorld(world, server, Client(channel))
    finally:
        await server.stop(0.5)


@asynccontextmanager
async def rpc_world(tmp_path: Path, **changed: Any) -> AsyncIterator[RpcWorld]:
    async with gateway_world(tmp_path, **changed) as world, answering(world) as found:
        yield found


async def reflected(channel: grpc.aio.Channel, version: str = "v1") -> dict[str, list[str]]:
    """The services that reflection lists, with their methods, from nothing but its answers."""
    kind = reflection_pb2
    info = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=kind.ServerReflectionRequest.SerializeToString,
        response_deserializer=kind.ServerReflectionResponse.FromString,
    )

    async def ask(**question: str) -> Any:
        async for answer in info(iter([kind.ServerReflectionRequest(**question)]), timeout=10):
            return answer
        raise AssertionError("no answer")

    found = {}
    for row in (await ask(list_services="")).list_services_response.service:
        answer = await ask(file_containing_symbol=row.name)
        files = map(
            FileDescriptorProto.FromString, answer.file_descriptor_response.file_descriptor_proto
        )
        own = {f"{file.package}.{each.name}": each for file in files for each in file.service}
        if row.name.startswith(PACKAGE):
            found[row.name] = [method.name for method in own[row.name].method]
    return found


def as_json(value: Message) -> Any:
    """A message with the names of REST."""
    return json_format.MessageToDict(value, preserving_proto_field_name=True)
