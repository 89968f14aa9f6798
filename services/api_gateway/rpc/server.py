"""The gRPC server of a gateway: one port, with TLS if the gateway has a certificate.

All handlers read raw bytes, so that a malformed message is the caller's fault and not the server's.
Tests: tests/integration/test_rpc_server.py.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import grpc
from starlette.types import ASGIApp

from libs.common.errors import Refused, Unavailable
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.edge import BODY_BYTES_MAX
from services.api_gateway.http.tls import Certificate
from services.api_gateway.rpc.call import Call
from services.api_gateway.rpc.calls import Calls
from services.api_gateway.rpc.channel_calls import ChannelCall
from services.api_gateway.rpc.introspection import Introspection
from services.api_gateway.rpc.methods import METHODS, PACKAGE, SERVICES, Kind, Method

# A body of REST's size in a message. Larger ones come in pieces.
MESSAGE_BYTES_MAX: Final = BODY_BYTES_MAX + (64 << 10)
METADATA_BYTES_MAX: Final = 16 << 10
# Streams of one connection, and bytes of a stream that come before they are asked for.
STREAMS_MAX: Final = 4_096
WINDOW_BYTES: Final = 64 << 10
# A connection without a call is closed after this long, and one whose client is silent is tested.
IDLE_MS: Final = 300_000
PING_MS: Final = 60_000
# Clients may ping this often.
PING_LEAST_MS: Final = 10_000


class RpcServer:
    """The server. `app` is the app that serves HTTP."""

    def __init__(self, gateway: Gateway, app: ASGIApp) -> None:
        self.gateway = gateway
        self.calls = Calls(gateway, app)
        for kind in (Kind.EXEC, Kind.FORWARD):
            self.calls.kinds[kind] = self._channel
        self.services = tuple(f"{PACKAGE}.{name}" for name in SERVICES)
        self.introspection = Introspection(self.services, self._serving)
        self.server = grpc.aio.server(options=_options(gateway.settings.gateway_head_ms))
        self.server.add_generic_rpc_handlers((_Handlers(self.calls, self.introspection),))
        self.port = 0

    async def _channel(self, call: Call) -> None:
        await ChannelCall(self.calls, call).run()

    def _serving(self, name: str) -> bool | None:
        """Return whether a service answers; None if it is not known. "" is the gateway."""
        if name not in ("", *self.services):
            return None
        return self.gateway.caught_up and not self.calls.is_stopping

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises Unavailable if the port is taken, Refused for a faulty certificate."""
        settings = self.gateway.settings
        own = settings.gateway_cert_file, settings.gateway_key_file
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if any(own):
                self.port = self.server.add_secure_port(where, _Secured(*own).credentials())
            else:
                self.port = self.server.add_insecure_port(where)
        except RuntimeError as error:
            raise Unavailable(
                f"the gateway cannot listen with gRPC on {where}: is the port taken? Free it, or "
                "set MUSTER_GATEWAY_GRPC_PORT"
            ) from error
        await self.server.start()

    async def stop(self, within_s: float) -> None:
        """End streams at once, and let other calls finish within this time."""
        self.calls.stop()
        await self.server.stop(within_s)
        await self.calls.drain(within_s)


def _options(handshake_ms: int) -> tuple[tuple[str, int], ...]:
    return (
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.max_concurrent_streams", STREAMS_MAX),
        ("grpc.server_handshake_timeout_ms", handshake_ms),
        ("grpc.max_connection_idle_ms", IDLE_MS),
        ("grpc.keepalive_time_ms", PING_MS),
        ("grpc.http2.min_ping_interval_without_data_ms", PING_LEAST_MS),
        ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
        ("grpc.http2.bdp_probe", 0),
    )


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Finds the handler of a call by its path."""

    def __init__(self, calls: Calls, introspection: Introspection) -> None:
        self._found = {each.full_name: _handler(_serving(calls, each)) for each in METHODS}
        for path, handler in introspection.handlers.items():
            self._found[path] = _handler(_introspecting(introspection, handler))

    def service(self, handler_call_details: Any) -> Any:  # noqa: ANN401  of gRPC
        return self._found.get(handler_call_details.method)


def _handler(serve: Callable[[Any, Any], Awaitable[None]]) -> Any:  # noqa: ANN401  of gRPC
    """Return a handler that reads and writes bytes: on the wire all kinds of methods are alike."""
    return grpc.stream_stream_rpc_method_handler(serve)


def _serving(calls: Calls, method: Method) -> Callable[[Any, Any], Awaitable[None]]:
    async def serve(_: Any, context: Any) -> None:  # noqa: ANN401  of gRPC
        await calls.serve(method, context)

    return serve


def _introspecting(
    introspection: Introspection, handler: Callable[[Any, Any], Awaitable[None]]
) -> Callable[[Any, Any], Awaitable[None]]:
    async def serve(_: Any, context: Any) -> None:  # noqa: ANN401  of gRPC
        await introspection.serve(handler, context)

    return serve


class _Secured:
    """The gateway's certificate for gRPC, read again when its files change. Raises Refused."""

    def __init__(self, certificate_file: str, key_file: str) -> None:
        self.certificate = Certificate(certificate_file, key_file)
        self.shown = self.certificate.context

    def credentials(self) -> Any:  # noqa: ANN401  of gRPC
        return grpc.dynamic_ssl_server_credentials(self._read(), self._fetch)

    def _fetch(self) -> Any:  # noqa: ANN401  of gRPC
        """Return the new certificate at a handshake; None if it is the same as before."""
        self.certificate.refresh()
        if self.certificate.context is self.shown:
            return None
        self.shown = self.certificate.context
        return self._read()

    def _read(self) -> Any:  # noqa: ANN401  of gRPC
        """Return the files, which the certificate has found to belong together."""
        try:
            key = Path(self.certificate.key_file).read_bytes()
            chain = Path(self.certificate.certificate_file).read_bytes()
        except OSError as error:
            raise Refused(f"the gateway's certificate cannot be read: {error}") from error
        return grpc.ssl_server_certificate_configuration([(key, chain)])
