"""The conversation in which a machine shows its invitation: TLS from the first byte, the gateway's
authority pinned by the token.

The authority's certificate comes first, over a connection that proves nothing and carries no
secret; its fingerprint must be the token's. The secret goes only over a second connection, to a
server that shows the cluster's name under that authority.
"""

import hashlib
import http.client
import json
import socket
import ssl
from typing import Any, Final
from urllib.parse import urlsplit

from libs.common.errors import Refused, Unavailable
from libs.common.messages.admission import Invitation
from libs.common.transport.connection_nats import TLS_NAME

ASK_S: Final = 20.0
ANSWER_BYTES_MAX: Final = 64 << 10


class _Pinned(http.client.HTTPSConnection):
    """The name to be shown is the cluster's, whatever the address is."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext) -> None:
        super().__init__(host, port, timeout=ASK_S, context=context)
        self.own_context = context

    def connect(self) -> None:
        self.sock = self.own_context.wrap_socket(
            socket.create_connection((self.host, self.port), ASK_S), server_hostname=TLS_NAME
        )


def authority(url: str, invitation: Invitation) -> str:
    """The authority's certificate (PEM), proved by the token.

    Raises Refused when it is another's, Unavailable.
    """
    blind = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
    pem = _ask(url, blind, "GET", "/join/ca").decode(errors="replace")
    try:
        found = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
    except ValueError as error:
        raise Refused(
            f"{url} does not answer as a Muster gateway: give the URL that `muster node add` "
            "printed"
        ) from error
    if found != invitation.fingerprint:
        raise Refused(
            f"{url} is not the cluster that made this token, or someone stands between: "
            "nothing was told to it"
        )
    return pem


def introduce(
    url: str, pem: str, invitation: Invitation, public_key: str, address: str
) -> dict[str, Any]:
    """node_id, cluster_id and nats, once the cluster accepts the key.

    Raises Refused, Unavailable.
    """
    trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusted.load_verify_locations(cadata=pem)
    said = {
        "node_id": invitation.node_id,
        "secret": invitation.secret,
        "public_key": public_key,
        "address": address,
    }
    try:
        found = json.loads(_ask(url, trusted, "POST", "/join", said))
    except ValueError as error:
        raise Unavailable(f"{url} answered with something that is not JSON") from error
    if not isinstance(found, dict) or not all(
        isinstance(found.get(name), str) for name in ("node_id", "cluster_id", "nats")
    ):
        raise Unavailable(f"{url} answered without a node's configuration")
    return found


def own_address(url: str) -> str:
    """The address of this machine from which the cluster is reached; other nodes find it there."""
    host, port = place(url)
    try:
        with socket.create_connection((host, port), ASK_S) as probe:
            return str(probe.getsockname()[0])
    except OSError as error:
        raise Unavailable(
            f"{url} does not answer ({error.strerror or error}): is the cluster up, and the "
            "port open to this machine?"
        ) from error


def place(url: str) -> tuple[str, int]:
    """Raises Refused for what is no https address."""
    try:
        parts = urlsplit(url)
        if parts.scheme == "https" and parts.hostname and parts.port:
            return parts.hostname, parts.port
    except ValueError:
        pass
    raise Refused(
        f"{url[:200]!r} is no address to join at: it looks like https://10.0.0.1:8443, as "
        "`muster node add` printed it"
    )


def _ask(url: str, context: ssl.SSLContext, method: str, path: str, said: object = None) -> bytes:
    connection = _Pinned(*place(url), context)
    try:
        body = None if said is None else json.dumps(said).encode()
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        answer = connection.getresponse()
        data = answer.read(ANSWER_BYTES_MAX)
    except ssl.SSLCertVerificationError as error:
        raise Refused(
            f"{url} does not prove to be the cluster that made this token "
            f"({error.verify_message}): nothing was told to it"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(
            f"{url} does not answer {method} {path} ({error}): is the cluster up, and the "
            "port open?"
        ) from error
    finally:
        connection.close()
    if answer.status != 200:
        refused = Refused if answer.status < 500 else Unavailable
        raise refused(_detail(data) or f"{url} answered {answer.status} to {method} {path}")
    return data


def _detail(data: bytes) -> str:
    try:
        found = json.loads(data)
    except ValueError:
        return ""
    return str(found.get("detail", "")) if isinstance(found, dict) else ""
