"""The twins, each as a test's parameter: what is asked of one is asked of the other."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
import pytest_asyncio

from libs.common import subjects
from libs.common.transport.bus import Bus
from libs.common.transport.bus_memory import MemoryBus
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.connection_nats import connect
from libs.common.transport.log import Log
from libs.common.transport.log_jetstream import JetStreamLog, create_stream
from libs.common.transport.log_memory import MemoryLog, MemoryStream
from tests.natsserver import NatsServer

STREAM_BYTES = 256 << 20
# One more process's way to the same log.
Logs = Callable[[], Awaitable[Log]]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    started = NatsServer(tmp_path_factory.mktemp("nats"))
    started.start()
    yield started
    started.kill()


@pytest_asyncio.fixture
async def jetstream(server: NatsServer) -> AsyncIterator[Logs]:
    """An empty stream; each log of it has a connection of its own."""
    clients = [await connect([server.url], "test")]
    await create_stream(clients[0], 1, STREAM_BYTES)

    async def another() -> Log:
        clients.append(await connect([server.url], "test"))
        return JetStreamLog(clients[-1])

    yield another
    await clients[0].jetstream(timeout=10).delete_stream(subjects.STREAM)
    for client in clients:
        await client.close()


@pytest.fixture(params=["memory", "jetstream"])
def logs(request: pytest.FixtureRequest) -> Logs:
    if request.param == "jetstream":
        found: Logs = request.getfixturevalue("jetstream")
        return found
    stream = MemoryStream()

    async def another() -> Log:
        return MemoryLog(stream)

    return another


@pytest_asyncio.fixture(params=["memory", "nats"])
async def buses(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Bus, Bus]]:
    """Two processes' ways to one bus."""
    if request.param == "memory":
        bus = MemoryBus()
        yield bus, bus
        return
    url = request.getfixturevalue("server").url
    clients = [await connect([url], "one"), await connect([url], "two")]
    yield NatsBus(clients[0]), NatsBus(clients[1])
    for client in clients:
        await client.close()
