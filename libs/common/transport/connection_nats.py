"""The NATS connection that all parts of one process share.

Facts behind the settings: nothing is buffered while the client is disconnected, because a publish
that timed out must not be written later by surprise. A client that leaves its server chooses
another one (`reconnecting.py`).
"""

import logging
import ssl
from collections.abc import Sequence
from typing import Any, Final, cast

from nats.aio.client import Client as Client
from nats.aio.transport import Transport
from nats.errors import Error as NatsError

from libs.common.errors import Refused, Unavailable
from libs.common.process.cancellation import within
from libs.common.safety.following import TLS_NAME, FollowingContext
from libs.common.settings.settings import Settings
from libs.common.transport.reconnecting import PAUSE_S, BoundedCloseTransport, ServerChoice

ASK_TIMEOUT_S: Final = 2.0
CONNECT_TIMEOUT_S: Final = 10.0
# A client pings its server at this interval, and leaves it if more pings than these are unanswered:
# at the latest after LEAVES_SILENT_SERVER_S. That must be well below a third of a lease
# (`lease_ms`), because a frozen server answers nothing and closes no connection.
PING_S: Final = 1.25
PINGS_UNANSWERED_MAX: Final = 2
LEAVES_SILENT_SERVER_S: Final = PING_S * (PINGS_UNANSWERED_MAX + 1)

logger = logging.getLogger(__name__)


async def connect(
    servers: Sequence[str],
    name: str,
    seed: bytes | None = None,
    ca_file: str = "",
    within_s: float = CONNECT_TIMEOUT_S,
) -> Client:
    """Return a connection that reconnects without end.

    `seed` is the process's nkey, `name` appears in the server's lists. With `ca_file` the
    connection uses TLS from the first byte, and the server must have the cluster's name in a
    certificate of that authority. Raises Unavailable if no server answers within `within_s`.
    """

    async def on_error(error: Exception) -> None:
        logger.warning("nats: %s", error)

    options: dict[str, Any] = {"ping_interval": PING_S, "reconnect_time_wait": PAUSE_S}
    if ca_file:
        logging.getLogger("asyncio").addFilter(_no_end_of_stream)
        options |= {
            "tls": _tls_context(ca_file),
            "tls_hostname": TLS_NAME,
            "tls_handshake_first": True,
        }
    if seed is not None:
        options |= {"nkeys_seed_str": seed.decode(), "inbox_prefix": f"_INBOX_{name}".encode()}
    client, choice = Client(), ServerChoice()
    client._transport = cast(Transport, BoundedCloseTransport())
    opening = client.connect(
        servers=list(servers),
        name=name,
        max_reconnect_attempts=-1,
        max_outstanding_pings=PINGS_UNANSWERED_MAX,
        pending_size=0,
        error_cb=on_error,
        reconnect_to_server_handler=choice,
        **options,
    )
    try:
        await within(opening, within_s)
    except (NatsError, OSError, TimeoutError) as error:
        raise Unavailable(
            f"no NATS server answers at {', '.join(servers)} ({error}): check that it runs"
        ) from error
    choice.note(server_of(client))
    return client


def server_of(client: Client) -> str:
    """Return the address (host:port) of the server that the client uses; empty if it has none."""
    url = client.connected_url
    return str(url.netloc) if url is not None else ""


async def connect_as(
    settings: Settings, name: str, seed: bytes | None = None, within_s: float = 0.0
) -> Client:
    """Connect with the process's settings.

    `seed` replaces the process's own nkey, `within_s` the timeout of the settings.
    """
    patience_s = within_s or settings.log_connect_ms / 1_000
    return await connect(
        servers=settings.servers,
        name=name,
        seed=seed or settings.nkey_seed,
        ca_file=settings.nats_ca_file,
        within_s=patience_s,
    )


def _no_end_of_stream(record: logging.LogRecord) -> bool:
    """Filter asyncio's needless warning about each TLS connection that the server closes."""
    return "eof_received() has no effect" not in record.getMessage()


def _tls_context(ca_file: str) -> ssl.SSLContext:
    """Return a context that trusts the file's authorities, also those that come later."""
    try:
        context = FollowingContext(ssl.PROTOCOL_TLS_CLIENT)
        context.follow(ca_file)
        return context
    except OSError as error:
        raise Refused(
            f"the authority's certificate {ca_file} cannot be read ({error}): check "
            "MUSTER_NATS_CA_FILE"
        ) from error
