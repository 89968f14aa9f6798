"""`muster port-forward` as a child process against a real cluster: data, refusals, ends."""

import asyncio
import hashlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from libs.embedded.servers import free_ports
from tests.integration.channel_world import PATIENCE_S, World, channel_world

pytestmark = pytest.mark.asyncio(loop_scope="module")

SIZE = 10 << 20
# Says back, on each connection, the hash of all that came before the end of its input, and then as
# many bytes as it was sent.
ECHO = """
import hashlib, socketserver, sys
class Talk(socketserver.StreamRequestHandler):
    def handle(self):
        data = self.rfile.read()
        self.wfile.write(hashlib.sha256(data).hexdigest().encode() + data)
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
    request_queue_size = 64
server = Server(("127.0.0.1", int(sys.argv[1])), Talk)
print("up", flush=True)
server.serve_forever()
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with channel_world(tmp_path_factory.mktemp("forward")) as made:
        yield made


async def serving(world: World, program: str = ECHO) -> tuple[str, int]:
    """A job that listens, and its port."""
    (port,) = free_ports(1)
    (world.chaos.folder / "server.py").write_text(program)
    return await world.job(f"exec {sys.executable} server.py {port}"), port


class Forwarding:
    """A running `muster port-forward`, and the port on which it listens."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int) -> None:
        self.process = process
        self.port = port

    async def ended(self) -> str:
        _, said = await asyncio.to_thread(self.process.communicate, None, PATIENCE_S)
        return said.decode()

    async def stop(self) -> str:
        self.process.terminate()
        return await self.ended()


async def forwarding(world: World, job: str, port: int, **more: str) -> Forwarding:
    process = world.start("port-forward", job, f"{port}:0", **more)
    assert process.stdout is not None
    line = (await asyncio.to_thread(process.stdout.readline)).decode()
    assert line.endswith(f" is port {port} of job {job}\n"), (line, process.communicate())
    return Forwarding(process, int(line.split()[0].rpartition(":")[2]))


async def talk(port: int, data: bytes) -> bytes:
    """Sends it all, ends its own direction, and reads the other to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    writer.write_eof()
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read(-1)
    finally:
        writer.close()


def answer(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode() + data


async def test_ten_mebibytes_pass_both_ways_over_a_half_closed_connection(
    world: World,
) -> None:
    job, port = await serving(world)
    forward = await forwarding(world, job, port)
    data = os.urandom(SIZE)
    assert await talk(forward.port, data) == answer(data)
    assert await talk(forward.port, b"") == answer(b"")
    assert await forward.stop() == ""
    await world.end(job)


async def test_twenty_concurrent_connections_do_not_mix(world: World) -> None:
    job, port = await serving(world)
    forward = await forwarding(world, job, port)
    sent = [os.urandom(300_000) for _ in range(20)]
    assert await asyncio.gather(*(talk(forward.port, data) for data in sent)) == [
        answer(data) for data in sent
    ]
    assert await forward.stop() == ""
    await world.end(job)


async def test_a_forwarded_server_answers_and_the_job_s_end_ends_the_command(world: World) -> None:
    (port,) = free_ports(1)
    (world.chaos.folder / "page").write_text("hello from the job")
    job = await world.job(f"echo up; exec {sys.executable} -m http.server {port}")
    forward = await forwarding(world, job, port)
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{forward.port}/page") as page,
    ):
        assert await page.text() == "hello from the job"
    with socket.create_connection(("127.0.0.1", forward.port)) as idle:
        idle.settimeout(PATIENCE_S)
        heard = asyncio.create_task(asyncio.to_thread(idle.recv, 1))
        await asyncio.sleep(0.3)
        await world.end(job)
        assert await heard == b""
    assert (
        f"job {job} has ended: cancelled" in await forward.ended()
        and forward.process.returncode == 0
    )


async def test_a_refused_connection_prints_a_line_and_others_continue(world: World) -> None:
    job, port = await serving(world)
    (unused,) = free_ports(1)
    forward = await forwarding(world, job, unused)
    for _ in range(2):
        with pytest.raises(OSError):
            await talk(forward.port, b"x")
    said = (await forward.stop()).splitlines()
    assert len(said) == 2 and all(f"nothing listens on port {unused}" in line for line in said)
    good = await forwarding(world, job, port)
    assert await talk(good.port, b"x") == answer(b"x")
    await good.stop()
    await world.end(job)


async def test_a_port_of_another_process_on_the_node_is_refused(world: World) -> None:
    job, _ = await serving(world)
    _, strange = await serving(world)
    with socket.create_server(("127.0.0.1", 0)) as mine:
        for port in (strange, mine.getsockname()[1]):
            forward = await forwarding(world, job, port)
            with pytest.raises(OSError):
                await talk(forward.port, b"x")
            assert f"port {port} of node node-1 is not the job's" in await forward.stop()


async def test_another_member_of_the_tenant_is_refused(world: World) -> None:
    job, port = await serving(world)
    status, made = await world.chaos.try_once(
        "POST", "/v1/keys", json={"user": "eve", "role": "member"}
    )
    assert status == 201, made
    forward = await forwarding(
        world, job, port, MUSTER_API_KEY=made["key"], MUSTER_URL=str(world.chaos.session._base_url)
    )
    with pytest.raises(OSError):
        await talk(forward.port, b"x")
    assert "may change only its own" in await forward.stop()
    await asyncio.sleep(0.3)
    rows = (await world.chaos.get("/v1/access", route="/v1/jobs/{ref}/forward", denied="true"))[
        "access"
    ]
    assert (rows[-1]["user"], rows[-1]["status"], rows[-1]["detail"]) == ("eve", 403, "")
    await world.end(job)


async def test_a_blocked_reader_blocks_the_server_and_no_buffer_grows(
    world: World,
) -> None:
    flood = (
        "import socket, sys\ns = socket.create_server(('127.0.0.1', "
        "int(sys.argv[1])))\nprint('up', flush=True)\nc, _ = s.accept()\n"
    )
    job, port = await serving(
        world,
        flood + "n = 0\nwhile True:\n    n += c.send(bytes(65536))\n    print(n, flush=True)\n",
    )
    forward = await forwarding(world, job, port)
    with socket.create_connection(("127.0.0.1", forward.port)) as connection:
        connection.recv(1)
        await asyncio.sleep(1.5)
        before = await sent(world, job)
        await asyncio.sleep(1.5)
        assert await sent(world, job) == before < 32 << 20
    await forward.stop()
    await world.end(job)


async def sent(world: World, job: str) -> int:
    async with world.chaos.session.get(f"/v1/jobs/{job}/output") as output:
        return int((await output.text()).split()[-1])


async def test_a_connection_that_breaks_is_reset_at_both_ends(world: World) -> None:
    hold = (
        "import socket, sys\ns = socket.create_server(('127.0.0.1', "
        "int(sys.argv[1])))\nprint('up', flush=True)\n"
    )
    job, port = await serving(
        world,
        hold
        + (
            "c, _ = s.accept()\nc.send(b'a')\ntry:\n    print(c.recv(1))\nexcept "
            "ConnectionResetError:\n    print('reset')\n"
        ),
    )
    forward = await forwarding(world, job, port)
    with socket.create_connection(("127.0.0.1", forward.port)) as connection:
        assert connection.recv(1) == b"a"
        forward.process.kill()
        await forward.ended()
    await world.until(job, "completed")
    async with world.chaos.session.get(f"/v1/jobs/{job}/output") as output:
        assert (await output.text()).split() == ["up", "reset"]
    job, port = await serving(
        world, hold + "c, _ = s.accept()\nc.send(b'a')\nimport time\ntime.sleep(60)\n"
    )
    forward = await forwarding(world, job, port)
    with socket.create_connection(("127.0.0.1", forward.port)) as connection:
        assert connection.recv(1) == b"a"
        connection.sendall(b"never read by the job")
        await asyncio.sleep(0.3)
        await world.end(job)
        connection.settimeout(PATIENCE_S)
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    assert "the job reset the connection" in await forward.ended()


async def test_ctrl_c_ends_open_connections_silently(world: World) -> None:
    job, port = await serving(world)
    forward = await forwarding(world, job, port)
    with socket.create_connection(("127.0.0.1", forward.port)) as idle:
        idle.sendall(b"x")
        await asyncio.sleep(0.5)
        forward.process.send_signal(signal.SIGINT)
        assert (await forward.ended(), forward.process.returncode) == ("", 130)
    await world.end(job)


async def test_port_forward_reports_an_ended_job(world: World) -> None:
    job = await world.job("echo up; sleep 1")
    await world.until(job, "completed")
    code, out, said = await world.muster("port-forward", job, "8888")
    assert (code, out) == (1, "") and "has ended: completed" in said
    code, _, said = await world.muster("port-forward", job, "88888")
    assert code == 2 and "from 1 to 65535" in said
