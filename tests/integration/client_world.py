"""A real cluster for the tests of the client, and the two clients of its administrator."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from libs.client.asynchronous.client import AsyncClient
from libs.client.synchronous.client import Client
from tests.chaos.cluster import Chaos, running


class ClientWorld(NamedTuple):
    """`client` blocks the test's event loop, which only the test itself uses."""

    cluster: Chaos
    client: Client
    many: AsyncClient
    profile: Path


@asynccontextmanager
async def client_world(folder: Path, nodes: int = 3, gpus: int = 2) -> AsyncIterator[ClientWorld]:
    async with running(folder, nodes=nodes, gpus=gpus) as cluster:
        profile = folder / "profile.json"
        with Client(profile=profile) as client:
            async with AsyncClient(profile=profile) as many:
                yield ClientWorld(cluster, client, many, profile)
