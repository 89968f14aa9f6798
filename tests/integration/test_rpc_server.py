"""The gRPC server as a whole: TLS, health, reflection, a taken port, a stop with open streams."""

import asyncio
import shutil
import socket
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from libs.client.rpc.client import KEEPALIVE
from libs.common.errors import Refused, Unavailable
from libs.embedded import certificates
from libs.embedded.servers import free_ports
from services.api_gateway import service
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.app import create_app
from services.api_gateway.rpc import introspection, server
from services.api_gateway.rpc.server import PING_LEAST_MS, RpcServer
from tests.integration.gateway_world import gateway_world
from tests.integration.rpc_world import Client, reflected, rpc_world

HOST = "gpus.example.org"
AWAY = (grpc.StatusCode.UNAVAILABLE,)


async def test_health_says_whether_the_gateway_serves(tmp_path: Path) -> None:
    async with rpc_world(tmp_path) as rpc:
        stub = health_pb2_grpc.HealthStub(rpc.client.channel)

        async def state(name: str) -> int:
            asked = health_pb2.HealthCheckRequest(service=name)
            return int((await stub.Check(asked, timeout=5)).status)

        serving = health_pb2.HealthCheckResponse.SERVING
        assert (await state(""), await state("muster.v1.Jobs")) == (serving, serving)
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await state("muster.v1.Colours")
        assert unknown.value.code() == grpc.StatusCode.NOT_FOUND
        rpc.world.gateway.caught_up = False
        assert await state("") == health_pb2.HealthCheckResponse.NOT_SERVING
        error = await rpc.client.fails("Nodes/WhoAmI")
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        rpc.world.gateway.caught_up = True


async def test_a_watch_of_the_health_shows_its_changes(tmp_path: Path) -> None:
    async with rpc_world(tmp_path) as rpc:
        stub = health_pb2_grpc.HealthStub(rpc.client.channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=20)
        kinds = health_pb2.HealthCheckResponse
        assert (await watch.read()).status == kinds.SERVING
        rpc.world.gateway.caught_up = False
        assert (await watch.read()).status == kinds.NOT_SERVING
        rpc.world.gateway.caught_up = True
        watch.cancel()


async def test_strangers_have_few_calls_and_malformed_ones_are_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(introspection, "STRANGERS_MAX", 1)
    async with rpc_world(tmp_path) as rpc:
        channel = rpc.client.channel
        held = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        await held.read()
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        with pytest.raises(grpc.aio.AioRpcError) as full:
            await check(b"", timeout=5)
        assert full.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        held.cancel()
        while rpc.server.introspection.open:
            await asyncio.sleep(0.01)
        with pytest.raises(grpc.aio.AioRpcError) as malformed:
            await check(b"\xff", timeout=5)
        assert malformed.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_an_unknown_method_is_not_implemented(tmp_path: Path) -> None:
    async with rpc_world(tmp_path) as rpc:
        call = rpc.client.channel.unary_unary("/muster.v1.Jobs/Paint")
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await call(b"", timeout=5)
        assert unknown.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_open_streams_end_at_a_stop_and_calls_finish(tmp_path: Path) -> None:
    async with rpc_world(tmp_path) as rpc:
        job = await rpc.world.submit()
        streams = [
            rpc.client.call("Events/Watch"),
            rpc.client.call("Events/FollowEvents"),
            rpc.client.call("Jobs/FollowJob", ref=job["id"]),
            rpc.client.call("Jobs/WaitJob", ref=job["id"]),
        ]
        for stream in streams:
            await stream.initial_metadata()
        stopping = asyncio.create_task(rpc.server.stop(2.0))
        for stream in streams:
            with pytest.raises(grpc.aio.AioRpcError) as away:
                async for _ in stream:
                    pass
            assert away.value.code() == grpc.StatusCode.UNAVAILABLE
            assert "stops" in (away.value.details() or "")
        await asyncio.wait_for(stopping, 10)
        await rpc.quiet()


async def test_a_taken_port_is_named(tmp_path: Path) -> None:
    async with rpc_world(tmp_path) as rpc:
        other = RpcServer(rpc.world.gateway, create_app(rpc.world.gateway))
        with pytest.raises(Unavailable, match=f"127.0.0.1:{rpc.server.port}.*GRPC_PORT"):
            await other.start("127.0.0.1", rpc.server.port)
        await other.stop(0.1)


def issue(folder: Path, name: str) -> dict[str, str]:
    """The settings of a new certificate of the users' authority."""
    certificates.authority(folder, "users")
    certificates.server(folder, name, "users", [HOST])
    return {
        "gateway_cert_file": str(certificates.certificate_file(folder, name)),
        "gateway_key_file": str(certificates.key_file(folder, name)),
    }


def secure(port: int, folder: Path) -> grpc.aio.Channel:
    trusted = certificates.certificate_file(folder, "users").read_bytes()
    return grpc.aio.secure_channel(
        f"127.0.0.1:{port}",
        grpc.ssl_channel_credentials(trusted),
        # Each channel its own connection.
        options=(("grpc.ssl_target_name_override", HOST), ("grpc.use_local_subchannel_pool", 1)),
    )


async def test_with_a_certificate_the_port_speaks_tls_alone(tmp_path: Path) -> None:
    async with rpc_world(tmp_path, **issue(tmp_path, "first")) as rpc:
        async with secure(rpc.server.port, tmp_path) as channel:
            assert (await Client(channel).call("Nodes/WhoAmI")).role == "admin"
            assert "muster.v1.Jobs" in await reflected(channel)
        error = await rpc.client.fails("Nodes/WhoAmI", timeout=3)
        assert error.code() in (*AWAY, grpc.StatusCode.DEADLINE_EXCEEDED)


async def test_a_new_certificate_is_shown_without_a_restart(tmp_path: Path) -> None:
    settings = issue(tmp_path, "first")
    async with rpc_world(tmp_path, **settings) as rpc:
        async with secure(rpc.server.port, tmp_path) as channel:
            await Client(channel).call("Nodes/WhoAmI")
        other = tmp_path / "other"
        other.mkdir()
        for name, path in issue(other, "second").items():
            shutil.copyfile(path, settings[name])
        async with secure(rpc.server.port, other) as channel:
            assert (await Client(channel).call("Nodes/WhoAmI")).role == "admin"


async def test_a_certificate_without_its_key_is_refused_at_the_start(tmp_path: Path) -> None:
    settings = {**issue(tmp_path, "first"), "gateway_key_file": str(tmp_path / "absent")}
    async with gateway_world(tmp_path, **settings) as world:
        server = RpcServer(world.gateway, create_app(world.gateway))
        with pytest.raises(Refused, match="cannot be used"):
            await server.start("127.0.0.1", 0)
        await server.stop(0.1)


async def test_the_service_answers_grpc_if_a_host_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the port becomes free later: HTTP does not wait for it."""
    monkeypatch.setattr(service, "GRPC_AGAIN_S", 0.05)
    port, http = free_ports(2)
    taken = socket.create_server(("127.0.0.1", port))
    async with gateway_world(
        tmp_path, gateway_grpc_host="127.0.0.1", gateway_grpc_port=port
    ) as world:
        stop, gateway = asyncio.Event(), world.gateway
        world.running.cancel()
        await asyncio.wait([world.running])
        apps: list[Gateway] = []
        monkeypatch.setattr(
            service, "create_app", lambda given: apps.append(given) or create_app(given)
        )
        running = asyncio.create_task(service.serve(gateway, "127.0.0.1", http, stop))
        await asyncio.sleep(0.3)
        assert not running.done()
        taken.close()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            await channel.channel_ready()
            client = Client(channel)
            stream = client.call("Events/Watch")
            await stream.initial_metadata()
            stop.set()
            with pytest.raises(grpc.aio.AioRpcError) as away:
                async for _ in stream:
                    pass
            assert away.value.code() in AWAY
        await asyncio.wait_for(running, 15)
        assert len(apps) == 1, "all listeners share the places of a tenant"


async def test_a_silent_stream_with_pings_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's own bound is one ping in five minutes, and it ends a stream after three."""
    monkeypatch.setattr(server, "PING_LEAST_MS", 20)
    options = tuple((dict(KEEPALIVE) | {"grpc.keepalive_time_ms": 1_000}).items())
    async with rpc_world(tmp_path) as rpc:
        address = f"127.0.0.1:{rpc.server.port}"
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            stream = asyncio.create_task(Client(channel).all("Events/Watch"))
            await asyncio.wait([stream], timeout=4.5)
            assert not stream.done(), stream.exception()
            stream.cancel()


def test_the_client_pings_no_more_often_than_the_server_permits() -> None:
    asked = dict(KEEPALIVE)
    assert asked["grpc.keepalive_time_ms"] > PING_LEAST_MS
    assert "grpc.keepalive_permit_without_calls" not in asked
