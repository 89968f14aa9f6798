"""Real servers that receive notifications: HTTP and SMTP, on loopback, with chosen faults."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

from aiohttp import web
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope

from libs.embedded import certificates
from libs.embedded.servers import free_ports
from tests.integration.gateway_world import World
from tests.integration.session_world import session_world

LOOPBACK = "127.0.0.0/8,::1/128"
WAIT_S = 20.0


class Receiver:
    """An HTTP server. `answer` gives the status of each request; `got` is what it accepted."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.tries = 0
        self.status = 200
        self.hangs = False
        self.headers: dict[str, str] = {}
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.tries += 1
        if self.hangs:
            await asyncio.sleep(WAIT_S)
        if self.status < 300:
            self.got.append((dict(request.headers), body))
        return web.Response(status=self.status, headers=self.headers, text="SECRET ANSWER")


@asynccontextmanager
async def receiver(context: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    made = Receiver()
    app = web.Application()
    app.router.add_post("/{path:.*}", made.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    port = runner.addresses[0][1]
    made.url = f"{'https' if context else 'http'}://localhost:{port}/hook/SECRETPATH"
    try:
        yield made
    finally:
        await runner.cleanup()


class Mails:
    """What an SMTP server accepted."""

    def __init__(self) -> None:
        self.got: list[tuple[Sequence[str], Message]] = []
        self.refuse = ""

    async def handle_DATA(self, server: Any, session: Any, envelope: Envelope) -> str:
        if self.refuse:
            return self.refuse
        content = envelope.content
        assert isinstance(content, bytes)
        self.got.append((envelope.rcpt_tos, message_from_bytes(content)))
        return "250 OK"


class Relay(Controller):
    """An SMTP relay in a thread of its own."""


@asynccontextmanager
async def relay(
    folder: Path, login: tuple[str, str] | None = None
) -> AsyncIterator[tuple[Mails, dict[str, Any]]]:
    """A relay that demands STARTTLS (and a login); also the settings that reach it."""
    context = server_context(folder)

    def check(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        given = (data.login.decode(), data.password.decode())
        return AuthResult(success=given == login)

    mails = Mails()
    (port,) = free_ports(1)
    controller = Relay(
        mails,
        hostname="127.0.0.1",
        port=port,
        tls_context=context,
        require_starttls=True,
        auth_required=login is not None,
        authenticator=check if login else None,
    )
    await asyncio.to_thread(controller.start)
    settings = {
        "smtp_host": "localhost",
        "smtp_port": port,
        "smtp_from": "muster@lab.example",
        "notify_ca_file": str(certificates.certificate_file(folder, "authority")),
    }
    try:
        yield mails, settings
    finally:
        await asyncio.to_thread(controller.stop)


def server_context(folder: Path) -> ssl.SSLContext:
    """A certificate for localhost, by an authority of this folder's own."""
    if not certificates.certificate_file(folder, "authority").exists():
        certificates.authority(folder, "authority")
        certificates.server(folder, "hook", "authority", ["localhost"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(
        certificates.certificate_file(folder, "hook"), certificates.key_file(folder, "hook")
    )
    return context


@asynccontextmanager
async def notify_world(folder: Path, **changed: Any) -> AsyncIterator[World]:
    """A gateway that may send to loopback, with a node."""
    settings = {"notify_networks": LOOPBACK, **changed}
    async with session_world(folder, **settings) as world:
        yield world


async def until(done: Callable[[], bool], wait_s: float = WAIT_S) -> None:
    """Wait for what comes by itself."""
    async with asyncio.timeout(wait_s):
        while not done():
            await asyncio.sleep(0.02)


def add(world: World, name: str, status: int = 201, **body: Any) -> Any:
    return world.ask("PUT", f"/v1/notifications/{name}", status, json=body)
