"""The gateway as a process: connect, listen, replay, serve, stop.

It listens before it has replayed, so that /livez and /readyz answer meanwhile; routes under /v1
answer 503 until then.
"""

import asyncio
import logging
import ssl
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from libs.common import subjects
from libs.common.agreement.questions import naming_keys
from libs.common.errors import Unavailable
from libs.common.messages.channel_messages import WINDOW_BYTES
from libs.common.process.cancellation import before, end_all
from libs.common.process.clock import SystemClock
from libs.common.process.open_files import raise_limit
from libs.common.process.serving_tasks import serve_together, until
from libs.common.settings.settings import Settings
from libs.common.transport import signed_snapshots
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.connection_nats import connect_as
from libs.common.transport.kv_nats import KvOutputs
from libs.common.transport.log_jetstream import JetStreamLog
from libs.common.transport.objects_nats import NatsObjects, filled_part
from libs.common.transport.once_nats import KvOnce
from libs.common.transport.revisions_nats import KvRevisions
from libs.common.transport.survey_nats import survey
from libs.common.transport.uploads_nats import NatsUploads
from services.api_gateway.collecting import Collecting
from services.api_gateway.control_plane.plane import ControlPlane
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.app import create_app
from services.api_gateway.http.connection import Connection
from services.api_gateway.http.listeners import listeners
from services.api_gateway.http.places import Places, places_by_files
from services.api_gateway.http.socket_protocol import SocketProtocol
from services.api_gateway.http.tls import Certificates

PING_S: Final = 20.0
# Interval at which a taken port for gRPC is tried again.
GRPC_AGAIN_S: Final = 5.0

logger = logging.getLogger(__name__)


async def main(settings: Settings, stop: asyncio.Event) -> None:
    """Serve until `stop`. Raises the errors that end a gateway (see `gateway.py`)."""
    client = await before(stop, connect_as(settings, f"gateway-{settings.instance}"))
    gateway = Gateway(
        log=JetStreamLog(client),
        bus=NatsBus(client),
        clock=SystemClock(),
        settings=settings,
        outputs=KvOutputs(client),
        store=signed_snapshots.of(settings, NatsObjects(client, settings.stream_replicas)),
        filled=lambda: filled_part(client),
        secrets=KvOutputs(client, subjects.SECRET_BUCKET),
        uploads=NatsUploads(client, settings.stream_replicas, settings.upload_store_bytes),
        once=KvOnce(client, settings.stream_replicas),
    )
    gateway.notifier.use(KvRevisions(client, settings.stream_replicas))
    gateway.pulse.plane = ControlPlane(
        gateway.bus,
        clock=gateway.clock,
        settings=settings,
        survey=partial(survey, client),
        read_seq=lambda: gateway.cluster.seq,
    )
    collecting = asyncio.create_task(Collecting().run(lambda: gateway.caught_up), name="collecting")
    try:
        await serve(gateway, settings.gateway_host, settings.gateway_port, stop)
    finally:
        await end_all([collecting])


async def serve(gateway: Gateway, host: str, port: int, stop: asyncio.Event) -> None:
    """Run the gateway and its HTTP servers until `stop` is set or one of them ends.

    Raises Refused if there is a TLS listener and its certificate cannot be used.
    """
    settings = gateway.settings
    raise_limit()
    shared = places_by_files()
    # All listeners share one app, and so the shares of tenants that it holds.
    app = create_app(gateway)
    servers = [server_for(gateway, host, port, places=shared, app=app)]
    certificates = Certificates(settings) if settings.gateway_tls_host else None
    if certificates is not None:
        servers.append(
            server_for(
                gateway,
                settings.gateway_tls_host,
                settings.gateway_tls_port,
                places=shared,
                tls=certificates.listener(),
                app=app,
            )
        )
    elif settings.gateway_cert_file and not settings.gateway_grpc_host:
        logger.warning(
            "MUSTER_GATEWAY_CERT_FILE is not used, because this gateway has no TLS listener: set "
            "MUSTER_GATEWAY_TLS_HOST"
        )
    fresh = {} if certificates is None else {"certificates": certificates.keep_fresh()}
    try:
        await serve_together(
            gateway=gateway.snapshots.distrusted_after(
                naming_keys(gateway.run(), gateway.bus, gateway.agreement)
            ),
            http=_answer_until(stop, gateway, servers, app),
            **fresh,
        )
    finally:
        stop.set()


async def _answer_until(
    stop: asyncio.Event, gateway: Gateway, servers: Sequence[uvicorn.Server], app: ASGIApp
) -> None:
    """Answer HTTP and gRPC until `stop` is set or a server ends.

    Then refuse requests that wait for a replica, let the other open ones end, and record them.
    """
    stopping, ending = asyncio.create_task(until(stop), name="stop"), asyncio.Event()
    listening = [asyncio.create_task(_listen(server), name="http") for server in servers]
    if gateway.settings.gateway_grpc_host:
        listening.append(asyncio.create_task(_answer_grpc(gateway, app, ending), name="grpc"))
    try:
        await asyncio.wait((stopping, *listening), return_when=asyncio.FIRST_COMPLETED)
        gateway.queues.stop()
        gateway.sockets.stop()
        ending.set()
        for server in servers:
            server.should_exit = True
        await asyncio.wait(listening, timeout=2 * gateway.settings.gateway_stop_ms / 1_000)
        if gateway.caught_up:
            await gateway.access.drain()
            await gateway.usage.drain()
    finally:
        await end_all([stopping, *listening])
    for task in listening:
        if not task.cancelled():
            task.result()


async def _answer_grpc(gateway: Gateway, app: ASGIApp, stop: asyncio.Event) -> None:
    """Answer gRPC until `stop` is set. While the port is taken, try again: HTTP goes on.

    Raises Refused if the certificate cannot be used.
    """
    # Imported here, because the library takes 20 MB.
    from services.api_gateway.rpc.server import RpcServer

    settings = gateway.settings
    server = RpcServer(gateway, app)
    said = ""
    try:
        while not stop.is_set():
            try:
                await server.start(settings.gateway_grpc_host, settings.gateway_grpc_port)
                await stop.wait()
            except Unavailable as error:
                if str(error) != said:
                    said = str(error)
                    logger.error("%s; until then the gateway answers HTTP only", error)
                with suppress(TimeoutError):
                    async with asyncio.timeout(GRPC_AGAIN_S):
                        await stop.wait()
    finally:
        await server.stop(settings.gateway_stop_ms / 1_000)


async def _listen(server: uvicorn.Server) -> None:
    """Run a server. Raises Unavailable if it cannot listen."""
    config = server.config
    try:
        sockets = listeners(config.host, config.port, config.backlog)
    except OSError as error:
        where = f"{config.host}:{config.port}"
        raise Unavailable(
            f"the gateway cannot listen on {where}: is the port taken? Free it, or set "
            "MUSTER_GATEWAY_PORT or MUSTER_GATEWAY_TLS_PORT"
        ) from error
    await server.serve(sockets)


def _is_no_refusal(record: logging.LogRecord) -> bool:
    """Drop the library's error for a WebSocket that was refused; the access record has it."""
    return "without completing handshake" not in record.getMessage()


def server_for(
    gateway: Gateway,
    host: str,
    port: int,
    tls: ssl.SSLContext | None = None,
    places: Places | None = None,
    app: ASGIApp | None = None,
) -> uvicorn.Server:
    """Return an HTTP server, with `tls` one that speaks only TLS.

    All servers of a gateway share `places`, those for connections, and `app`.

    `libs.common.process.service.run` handles signals, not the server.
    """
    settings = gateway.settings
    protocol = partial(
        Connection,
        head_s=settings.gateway_head_ms / 1_000,
        unread_s=settings.gateway_unread_ms / 1_000,
        places=places or places_by_files(),
    )
    config = uvicorn.Config(
        app or create_app(gateway),
        host=host,
        port=port,
        loop="none",
        http=protocol,  # type: ignore[arg-type]
        ws=SocketProtocol,
        # A client that reads nothing answers no ping: it is cut off sooner, and with the reason.
        ws_ping_timeout=PING_S + settings.gateway_unread_ms / 1_000,
        ws_ping_interval=PING_S,
        # One message is at most what a client may have under way. Compressing a terminal's bytes is
        # not worth the time.
        ws_max_size=WINDOW_BYTES,
        ws_per_message_deflate=False,
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        # The source address is recorded, and a header that a client sends does not prove it.
        proxy_headers=False,
        timeout_graceful_shutdown=max(1, settings.gateway_stop_ms // 1_000),
    )
    config.load()
    config.ssl = tls
    logging.getLogger("uvicorn.error").addFilter(_is_no_refusal)
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # type: ignore[method-assign, assignment]
    return server
