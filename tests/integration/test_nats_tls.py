"""Three real servers as the containers have them, here on loopback: TLS to clients and among
themselves, from the first byte.
"""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.common.errors import Refused, Unavailable
from libs.common.settings.settings import Settings
from libs.common.transport import connection_nats, log_jetstream
from libs.embedded import certificates
from tests.integration.tls_world import COUNT, Cluster

WITHIN_S = 20.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    found = Cluster(tmp_path_factory.mktemp("tls"))
    yield found
    found.stop()


async def stored(settings: Settings, within_s: float = WITHIN_S) -> int:
    """How many servers keep the log that this client has made."""
    client = await connection_nats.connect(
        servers=settings.servers,
        name="scheduler",
        seed=settings.nkey_seed,
        ca_file=settings.nats_ca_file,
        within_s=within_s,
    )
    try:
        await log_jetstream.create_stream(client, COUNT, 1 << 20)
        return int((await client.jetstream().stream_info("FACTS")).config.num_replicas or 0)
    finally:
        await client.close()


async def test_a_client_that_knows_the_authority_has_its_log_on_three_servers(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    assert await stored(cluster.settings()) == COUNT
    await asyncio.sleep(0.2)
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


async def test_a_client_without_tls_is_told_nothing(cluster: Cluster) -> None:
    with pytest.raises(Unavailable):
        await stored(cluster.settings(authority=""), 1.0)
    with socket.create_connection(
        ("127.0.0.1", int(cluster.urls[0].rpartition(":")[2])), 1.0
    ) as connection:
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):
            connection.recv(1)


async def test_a_client_of_another_authority_does_not_speak(cluster: Cluster) -> None:
    certificates.authority(cluster.folder, "other")
    with pytest.raises(Unavailable):
        await stored(cluster.settings(authority="other.pem"), 1.0)


def test_a_route_asks_for_a_certificate_of_the_authority(cluster: Cluster) -> None:
    with socket.create_connection(("127.0.0.1", cluster.routes[0]), 2.0) as plain:
        context = ssl.create_default_context(cafile=cluster.folder / "authority.pem")
        with (
            pytest.raises((ssl.SSLError, ConnectionError)),
            context.wrap_socket(plain, server_hostname="localhost") as wrapped,
        ):
            wrapped.sendall(b"PING\r\n")
            while wrapped.recv(4096):  # TLS 1.3 says what it misses behind its own last word
                pass
            raise ConnectionResetError


async def test_a_bad_authority_file_is_named(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    for path in (tmp_path / "empty.pem", tmp_path / "missing.pem"):
        with pytest.raises(Refused, match="MUSTER_NATS_CA_FILE"):
            await connection_nats.connect(cluster.urls, "scheduler", ca_file=str(path))
