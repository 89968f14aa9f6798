"""The gateway's TLS listener: which certificate it shows, and what a change of the files does."""

import asyncio
import logging
import os
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from cryptography import x509

from libs.common.errors import Refused
from libs.common.process.clock import SystemClock
from libs.common.safety.following import TLS_NAME
from libs.common.settings.settings import Settings
from libs.common.transport.bus_memory import MemoryBus
from libs.common.transport.kv import MemoryOutputs
from libs.common.transport.log_memory import MemoryLog
from libs.common.transport.snapshot_store import MemorySnapshots
from libs.embedded import certificates
from libs.embedded.servers import free_ports
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.tls import Certificates
from services.api_gateway.service import serve, server_for
from tests.integration.gateway_world import World
from tests.integration.openai_world import CHAT, MESSAGES, model_world

HOST = "gpus.example.org"
NEVER = 10.0


class Files(NamedTuple):
    """The files of the listener, beside the authority of the users and that of the cluster."""

    folder: Path

    @property
    def certificate(self) -> Path:
        return self.folder / "shown.pem"

    @property
    def key(self) -> Path:
        return self.folder / "shown.key"

    def issue(self, name: str) -> tuple[bytes, bytes]:
        """Return a new certificate of the users' authority, and its key."""
        certificates.authority(self.folder, "users")
        certificates.server(self.folder, name, "users", [HOST])
        return (
            certificates.certificate_file(self.folder, name).read_bytes(),
            certificates.key_file(self.folder, name).read_bytes(),
        )

    def put(self, file: Path, content: bytes) -> None:
        """Replace a file at once, as certificate tools do."""
        new = file.with_suffix(".new")
        new.write_bytes(content)
        new.rename(file)

    def show(self, name: str) -> int:
        """Give the listener a new certificate. Return its serial number."""
        certificate, key = self.issue(name)
        self.put(self.certificate, certificate)
        self.put(self.key, key)
        return x509.load_pem_x509_certificate(certificate).serial_number

    def settings(self) -> dict[str, Any]:
        return {
            "gateway_tls_host": "127.0.0.1",
            "gateway_cert_file": str(self.certificate),
            "gateway_key_file": str(self.key),
        }

    def trust(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.folder / "users.pem")
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context


@pytest.fixture
def files(tmp_path: Path) -> Files:
    folder = tmp_path / "certificates"
    folder.mkdir()
    return Files(folder)


@asynccontextmanager
async def listening(world: World) -> AsyncIterator[tuple[Certificates, int]]:
    """Serve the gateway of a test with TLS too, as `serve` does."""
    found = Certificates(world.gateway.settings)
    server = server_for(world.gateway, "127.0.0.1", 0, tls=found.listener())
    serving = asyncio.create_task(server.serve())
    while not server.started:
        assert not serving.done(), serving.exception()
        await asyncio.sleep(0.005)
    try:
        yield found, server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        await serving


async def shown(port: int, trust: ssl.SSLContext, name: str | None = HOST) -> int:
    """Return the serial number of the certificate that a new connection sees."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust, server_hostname=name)
    found = x509.load_der_x509_certificate(
        writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    )
    writer.close()
    return found.serial_number


async def test_an_open_stream_outlives_a_change_of_the_certificate(
    tmp_path: Path, files: Files
) -> None:
    first = files.show("first")
    async with (
        model_world(tmp_path, **files.settings()) as (world, _),
        listening(world) as (found, port),
    ):
        body = {"model": "m", "messages": MESSAGES, "stream": True, "x_chunks": 20, "x_gap_s": 0.05}
        async with world.session.post(
            f"https://127.0.0.1:{port}{CHAT}", json=body, ssl=files.trust(), server_hostname=HOST
        ) as stream:
            assert stream.status == 200
            begun = await stream.content.readline()
            assert await shown(port, files.trust()) == first
            second = files.show("second")
            found.refresh()
            assert await shown(port, files.trust()) == second != first
            rest = begun + await stream.content.read()
        assert rest.count(b"data: {") >= 20 and rest.rstrip().endswith(b"data: [DONE]")


async def test_no_connection_is_refused_while_certificates_change(
    tmp_path: Path, files: Files
) -> None:
    files.show("first")
    async with (
        model_world(tmp_path, **files.settings()) as (world, _),
        listening(world) as (found, port),
    ):
        seen = set[int]()
        given = {files.show(f"number-{number}") for number in range(3)}
        found.refresh()
        for number in range(3, 23):
            asked = [asyncio.create_task(shown(port, files.trust())) for _ in range(3)]
            await asyncio.sleep(0)
            given.add(files.show(f"number-{number}"))
            found.refresh()
            seen.update(await asyncio.gather(*asked))
        assert seen <= given and len(seen) > 1


async def test_a_faulty_certificate_is_logged_once_and_the_old_one_stays(
    tmp_path: Path, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    first = files.show("first")
    certificate, key = files.issue("second")
    async with (
        model_world(tmp_path, **files.settings()) as (world, _),
        listening(world) as (found, port),
    ):
        for content in (b"no certificate", certificate):  # the second one's key is not there yet
            caplog.clear()
            files.put(files.certificate, content)
            with caplog.at_level(logging.INFO):
                found.refresh()
                found.refresh()
            said = [record.getMessage() for record in caplog.records if record.name.endswith("tls")]
            assert len(said) == 1 and str(files.certificate) in said[0]
            assert "goes on with the certificate that it has" in said[0]
            assert await shown(port, files.trust()) == first
        files.certificate.unlink()
        found.refresh()
        assert await shown(port, files.trust()) == first
        files.put(files.certificate, certificate)
        files.put(files.key, key)
        found.refresh()
        second = x509.load_pem_x509_certificate(certificate).serial_number
        assert await shown(port, files.trust()) == second


async def test_a_machine_that_joins_sees_the_certificate_of_the_cluster(
    tmp_path: Path, files: Files
) -> None:
    first, folder = files.show("first"), files.folder
    certificates.authority(folder, "ca")
    certificates.server(folder, "server", "ca", [TLS_NAME])
    joining = {
        "tls_cert_file": str(folder / "server.pem"),
        "tls_key_file": str(folder / "server.key"),
    }
    cluster = ssl.create_default_context(cafile=folder / "ca.pem")
    nameless = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nameless.load_verify_locations(folder / "users.pem")
    nameless.check_hostname = False
    async with (
        model_world(tmp_path, **files.settings(), **joining) as (world, _),
        listening(world) as (_, port),
    ):
        assert await shown(port, files.trust()) == first
        assert await shown(port, nameless, "") == first
        assert await shown(port, cluster, TLS_NAME) != first
        with pytest.raises(ssl.SSLCertVerificationError):
            await shown(port, files.trust(), TLS_NAME)


async def test_without_a_certificate_of_one_s_own_all_see_that_of_the_cluster(
    tmp_path: Path, files: Files
) -> None:
    serial = files.show("first")
    joining = {
        "gateway_tls_host": "127.0.0.1",
        "tls_cert_file": str(files.certificate),
        "tls_key_file": str(files.key),
    }
    async with model_world(tmp_path, **joining) as (world, _), listening(world) as (_, port):
        assert await shown(port, files.trust()) == serial


@pytest.mark.parametrize("fault", ["no files", "no key", "a locked key", "nothing set"])
def test_a_gateway_without_a_valid_certificate_does_not_start(files: Files, fault: str) -> None:
    settings = files.settings()
    if fault == "no key":
        files.show("first")
        settings["gateway_key_file"] = ""
    elif fault == "a locked key":
        files.show("first")
        files.put(files.key, _locked(files.key.read_bytes()))
    elif fault == "nothing set":
        settings = {"gateway_tls_host": "127.0.0.1"}
    with pytest.raises(Refused, match=r"MUSTER_GATEWAY_CERT_FILE|PEM files that belong together"):
        Certificates(Settings(**settings))


def _locked(key: bytes) -> bytes:
    from cryptography.hazmat.primitives import serialization as s

    found = s.load_pem_private_key(key, None)
    return found.private_bytes(
        s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(b"a password")
    )


async def test_a_gateway_listens_with_and_without_tls_and_reads_its_files_again(
    tmp_path: Path, files: Files
) -> None:
    """`serve` as the process runs it: changed files count within seconds, with SIGHUP at once."""
    first = files.show("first")
    plain, tls = free_ports(2)
    stop = asyncio.Event()
    running = asyncio.create_task(serve(_gateway(tls, files), "127.0.0.1", plain, stop))
    try:
        assert await _until_shown(running, tls, files) == first
        async with aiohttp.ClientSession() as session:
            for url in (f"http://127.0.0.1:{plain}", f"https://127.0.0.1:{tls}"):
                async with session.get(
                    url + "/livez", ssl=files.trust(), server_hostname=HOST
                ) as answer:
                    assert answer.status == 200 and answer.version == aiohttp.HttpVersion11
        second = files.show("second")
        assert await _until_shown(running, tls, files, not_serial=first) == second
        third = files.show("third")
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.1)
        assert await shown(tls, files.trust()) == third
    finally:
        stop.set()
        await asyncio.wait_for(running, NEVER)
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


def _gateway(port: int, files: Files) -> Gateway:
    async def empty() -> float:
        return 0.0

    return Gateway(
        log=MemoryLog(idle_s=0.05),
        bus=MemoryBus(),
        clock=SystemClock(),
        settings=Settings(gateway_tls_port=port, **files.settings()),
        outputs=MemoryOutputs(),
        store=MemorySnapshots(),
        filled=empty,
    )


async def _until_shown(
    running: asyncio.Task[None], port: int, files: Files, not_serial: int = 0
) -> int:
    async with asyncio.timeout(NEVER):
        while True:
            assert not running.done(), running.exception()
            try:
                if (found := await shown(port, files.trust())) != not_serial:
                    return found
            except ConnectionRefusedError:
                pass
            await asyncio.sleep(0.05)
