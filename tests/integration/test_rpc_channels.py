"""Commands and ports of jobs over gRPC, in a real cluster: each byte arrives in both directions."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

from libs.embedded.servers import free_ports
from libs.rpc.messages import message
from tests.integration.channel_world import World, channel_world, eventually, is_gone
from tests.integration.rpc_world import Client

pytestmark = pytest.mark.asyncio(loop_scope="module")
SERVE = (
    "import socketserver as s\n"
    "class H(s.StreamRequestHandler):\n"
    "  def handle(self): self.wfile.write(self.rfile.read().upper())\n"
    "server = s.TCPServer(('127.0.0.1', {port}), H)\n"
    "print('up', flush=True)\n"
    "server.serve_forever()\n"
)


class Cluster:
    """A cluster whose gateway answers gRPC, and a client of it."""

    def __init__(self, world: World, client: Client) -> None:
        self.world = world
        self.client = client

    async def exec(self, job_id: str, *command: str, **more: Any) -> tuple[bytes, bytes, Any]:
        """The output, the errors and the last message of a command; `inputs` are its messages."""
        inputs = more.pop("inputs", [])
        kind = message("ExecInput")

        async def asks() -> AsyncIterator[Any]:
            yield kind(start={"ref": job_id, "command": list(command), **more})
            for each in inputs:
                yield kind(**each)

        call = self.client.call("Jobs/Exec", asks=asks(), timeout=60)
        found = [each async for each in call]
        out = b"".join(each.stdout for each in found)
        return out, b"".join(each.stderr for each in found), found[-1]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    (port,) = free_ports(1)
    settings = {"MUSTER_GATEWAY_GRPC_HOST": "127.0.0.1", "MUSTER_GATEWAY_GRPC_PORT": str(port)}
    async with (
        channel_world(tmp_path_factory.mktemp("rpc"), **settings) as world,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        await asyncio.wait_for(channel.channel_ready(), 30)
        key = world.chaos.session.headers["authorization"].removeprefix("Bearer ")
        yield Cluster(world, Client(channel, key))


async def test_a_command_gives_its_output_and_its_exit_code(cluster: Cluster) -> None:
    job_id = await cluster.world.job()
    out, err, last = await cluster.exec(job_id, "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (out, err, last.exit_code) == (b"out\n", b"err\n", 7)


async def test_input_of_megabytes_comes_back(cluster: Cluster) -> None:
    job_id = await cluster.world.job()
    data = bytes(range(256)) * 8_192
    pieces = [{"data": data[begin : begin + 700_000]} for begin in range(0, len(data), 700_000)]
    out, _, last = await cluster.exec(job_id, "cat", stdin=True, inputs=[*pieces, {"eof": True}])
    assert (out == data, last.exit_code) == (True, 0)


async def test_a_terminal_has_its_size_and_a_signal_ends_a_command(cluster: Cluster) -> None:
    job_id = await cluster.world.job()
    out, _, last = await cluster.exec(job_id, "stty", "size", tty=True, rows=33, columns=77)
    assert (out.split(), last.exit_code) == ([b"33", b"77"], 0)
    _, _, last = await cluster.exec(job_id, "sleep", "300", inputs=[{"signal": 15}])
    assert last.exit_code != 0


async def test_a_cancelled_call_ends_its_command(cluster: Cluster) -> None:
    job_id = await cluster.world.job()
    start = message("ExecInput")(
        start={"ref": job_id, "command": ["sh", "-c", "echo $$; exec sleep 300"], "stdin": True}
    )
    call = cluster.client.call("Jobs/Exec", asks=iter([start]), timeout=60)
    first = await call.read()
    pid = int(first.stdout)
    call.cancel()
    await eventually(lambda: is_gone(pid))


async def test_a_port_of_a_job_is_reached(cluster: Cluster) -> None:
    (port,) = free_ports(1)
    job_id = await cluster.world.job(f'exec python3 -c "{SERVE.format(port=port)}"')
    kind = message("ForwardPiece")
    asks = [
        kind(start={"ref": job_id, "port": port}),
        kind(data=b"hello " * 50_000),
        kind(eof=True),
    ]
    found = [
        each async for each in cluster.client.call("Jobs/Forward", asks=iter(asks), timeout=60)
    ]
    assert b"".join(each.data for each in found) == b"HELLO " * 50_000
    assert found[-1].eof


async def test_a_broken_message_ends_the_channel(cluster: Cluster) -> None:
    job_id = await cluster.world.job()
    kind = message("ExecInput")
    start = kind(start={"ref": job_id, "command": ["cat"], "stdin": True})
    for wrong in (b"\xff", kind(signal=99), kind(size={"rows": 0, "columns": 5})):
        error = await cluster.client.fails("Jobs/Exec", asks=iter([start, wrong]))
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error.details()


async def test_a_command_for_a_job_that_does_not_run_is_refused(cluster: Cluster) -> None:
    job_id = await cluster.world.job()
    await cluster.world.end(job_id)
    await eventually(lambda: cluster.world.is_over(job_id))
    start = message("ExecInput")(start={"ref": job_id, "command": ["true"]})
    error = await cluster.client.fails("Jobs/Exec", asks=iter([start]))
    assert error.code() == grpc.StatusCode.NOT_FOUND
    assert dict(error.trailing_metadata())["muster-status"] == "410"
