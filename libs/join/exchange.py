"""The exchange with the gateway in which a machine presents its invitation, over TLS.

The machine first gets the authority's certificate, over a connection that proves nothing and
carries no secret. Its fingerprint must be the one in the token. The machine sends the secret only
over a second connection, to a server with the cluster's name and a certificate of that authority.
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
from libs.common.safety.following import TLS_NAME

ASK_S: Final = 20.0
ANSWER_BYTES_MAX: Final = 64 << 10


class _Pinned(http.client.HTTPSConnection):
    """An HTTPS connection to a server with the cluster's name, whatever its address is."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext) -> None:
        super().__init__(host, port, timeout=ASK_S, context=context)
        self.own_context = context

    def connect(self) -> None:
        self.sock = self.own_context.wrap_socket(
            socket.create_connection((self.host, self.port), ASK_S), server_hostname=TLS_NAME
        )


def authority(url: str, invitation: Invitation) -> str:
    """Return the authority's certificate (PEM), verified by the token.

    Raises Refused for the certificate of another authority, and Unavailable.
    """
    blind = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
    pem = _ask(url, blind, "GET", "/join/ca").decode(errors="replace")
    try:
        found = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
    except ValueError as error:
        raise Refused(
            f"{url} does not answer like a Muster gateway: use the URL that `muster node add` "
            "printed"
        ) from error
    if found != invitation.fingerprint:
        raise Refused(
            f"{url} is not the cluster that created this token, or the connection is intercepted: "
            "no secret was sent. Use the URL that `muster node add` printed"
        )
    return pem


def introduce(
    url: str, pem: str, invitation: Invitation, public_key: str, address: str
) -> dict[str, Any]:
    """Send the node's public key with the secret. Return node_id, cluster_id and nats.

    Raises Refused, Unavailable.
    """
    trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusted.load_verify_locations(cadata=pem)
    request = {
        "node_id": invitation.node_id,
        "secret": invitation.secret,
        "public_key": public_key,
        "address": address,
    }
    try:
        found = json.loads(_ask(url, context=trusted, method="POST", path="/join", content=request))
    except ValueError as error:
        raise Unavailable(
            f"{url} did not answer with JSON: check that it is the address of a Muster gateway"
        ) from error
    if not isinstance(found, dict) or not all(
        isinstance(found.get(name), str) for name in ("node_id", "cluster_id", "nats")
    ):
        raise Unavailable(
            f"{url} did not answer with a node's configuration: check that the gateway and this "
            "program have the same version"
        )
    return found


def own_address(url: str) -> str:
    """Return this machine's address towards the cluster. Other nodes reach the machine there."""
    host, port = place(url)
    try:
        with socket.create_connection((host, port), ASK_S) as probe:
            return str(probe.getsockname()[0])
    except OSError as error:
        raise Unavailable(
            f"{url} does not answer ({error.strerror or error}): check that the cluster runs and "
            "that this machine may reach the port"
        ) from error


def place(url: str) -> tuple[str, int]:
    """Return host and port of the URL. Raises Refused if it is not an https address."""
    try:
        parts = urlsplit(url)
        if parts.scheme == "https" and parts.hostname and parts.port:
            return parts.hostname, parts.port
    except ValueError:
        pass
    raise Refused(
        f"{url[:200]!r} is not an address to join at: use the one that `muster node add` printed, "
        "for example https://10.0.0.1:8443"
    )


def _ask(
    url: str, context: ssl.SSLContext, method: str, path: str, content: object = None
) -> bytes:
    connection = _Pinned(*place(url), context)
    try:
        body = None if content is None else json.dumps(content).encode()
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        answer = connection.getresponse()
        data = answer.read(ANSWER_BYTES_MAX)
    except ssl.SSLCertVerificationError as error:
        raise Refused(
            f"{url} could not prove that it is the cluster that created this token "
            f"({error.verify_message}): no secret was sent"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(
            f"{url} does not answer {method} {path} ({error}): check that the cluster runs and "
            "that the port is open"
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
