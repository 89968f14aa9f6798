"""The HTTP request that a method's message stands for.

Pure. Tests: tests/unit/test_rpc_requests.py.
"""

import re
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from libs.common.errors import Refused
from services.api_gateway.rpc.methods import Kind, Method

PARAMETER: Final = re.compile(r"\{(\w+)\}")
# A model's id may contain a slash, and its route takes the rest of the path.
REST_OF_PATH: Final = "/v1/models/{id}"
# Metadata that becomes headers. Everything else stays where it is.
PASSED: Final = (
    *("authorization", "idempotency-key", "x-request-id", "x-forwarded-for"),
    *("traceparent", "tracestate"),
)
JSON_TYPE: Final = (b"content-type", b"application/json")
BYTES_TYPE: Final = (b"content-type", b"application/octet-stream")
EVENTS_TYPE: Final = (b"accept", b"text/event-stream")

Headers = list[tuple[bytes, bytes]]
Metadata = tuple[tuple[str, str | bytes], ...]

_encode: Final = msgspec.json.Encoder().encode


class Asked(NamedTuple):
    """A request. `path` is decoded, as in an ASGI scope."""

    path: str
    query: bytes
    body: bytes
    headers: Headers


def asked(method: Method, fields: dict[str, Any]) -> Asked:
    """Return the request for a message's fields. Raises Refused naming the field of a path."""
    left = dict(fields)
    path = PARAMETER.sub(lambda found: _part(method, found[1], left), method.path)
    if method.limit and not left.get("limit"):
        left["limit"] = method.limit
    query = dict(method.fixed)
    for name in list(left) if not method.has_body else method.query:
        if name in left and not (method.kind is Kind.RAW and name == "data"):
            query[name] = left.pop(name)
    body, headers = _body(method, left)
    return Asked(path, _query(query), body, headers)


def _part(method: Method, name: str, fields: dict[str, Any]) -> str:
    value: str = fields.pop(name, "")
    if not value or ("/" in value and method.path != REST_OF_PATH):
        raise Refused(
            f"{name}: {value[:64]!r} is not a valid id or name: give one that is not empty and has "
            "no '/'"
        )
    return value


def _query(values: dict[str, Any]) -> bytes:
    pairs = [
        (name, ("true" if each else "false") if isinstance(each, bool) else each)
        for name, value in values.items()
        for each in (value if isinstance(value, list) else (value,))
    ]
    return urlencode(pairs).encode()


def _body(method: Method, fields: dict[str, Any]) -> tuple[bytes, Headers]:
    if method.kind is Kind.RAW:
        data: bytes = fields.get("data", b"")
        return data, [BYTES_TYPE, _length(data)]
    accepts = [EVENTS_TYPE] if method.kind is Kind.EVENTS else []
    if not method.has_body:
        return b"", accepts
    if method.service == "Inference":
        fields |= fields.pop("more", {})
        if method.kind is Kind.EVENTS:
            fields["stream"] = True
    if not fields:
        return b"", accepts
    body = _encode(fields)
    return body, [*accepts, JSON_TYPE, _length(body)]


def _length(body: bytes) -> tuple[bytes, bytes]:
    return b"content-length", b"%d" % len(body)


def scope_of(
    method: Method,
    request: Asked,
    metadata: Metadata,
    peer: str,
    kind: str = "http",
) -> dict[str, Any]:
    """Return the ASGI scope of a request. `peer` is the address of the client as gRPC writes it."""
    passed = [
        (name.encode(), value.encode("latin-1") if isinstance(value, str) else value)
        for name, value in metadata
        if name in PASSED
    ]
    return {
        "type": kind,
        # Streams of this version watch for the client's end by themselves.
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "2",
        "method": method.verb,
        "scheme": "http",
        "path": request.path,
        "raw_path": quote(request.path).encode(),
        "query_string": request.query,
        "root_path": "",
        "headers": [*passed, *request.headers],
        "client": client_of(peer),
        "server": None,
        # In the access record, unless the route has more to say.
        "detail": method.full_name,
    }


def client_of(peer: str) -> tuple[str, int] | None:
    """Return the address and port in `ipv4:10.0.0.1:4711` or `ipv6:[::1]:4711`, quoted or not."""
    family, _, rest = peer.partition(":")
    host, _, port = rest.rpartition(":")
    if family not in ("ipv4", "ipv6") or not port.isdigit():
        return None
    host = host.replace("%5B", "").replace("%5D", "").strip("[]")
    return host, int(port)
