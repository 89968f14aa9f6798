"""HTTP requests to the gateway, with a JSON answer or a streamed one.

It uses http.client, because imports dominate the run time of a command. Network errors and refusals
become the errors of `faults.py`. Each request opens its own connection.
"""

import http.client
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any, Final
from urllib.parse import quote, urlencode, urlsplit

from libs.cli.faults import Cut, Declined, Unreachable
from libs.cli.profile import DEFAULT_SOURCE, Profile
from libs.common.errors import Refused

CONNECT_S: Final = 10.0
ANSWER_S: Final = 30.0
READ_BYTES: Final = 65_536
PROBLEM_BYTES_MAX: Final = 65_536
KEEPALIVE_IDLE_S: Final = 15

Query = Mapping[str, object]
Json = dict[str, Any]
# A file is streamed, not read into memory.
Payload = bytes | IO[bytes] | None


def job_path(ref: str, *parts: str) -> str:
    """Return the URL path of a job, or of a part of it.

    `ref` is an id, a unique prefix of one, a name, or MODEL/REPLICA.
    """
    model, slash, replica = ref.rpartition("/")
    ref = f"{model}-{replica}" if slash else ref
    return "/".join(("/v1/jobs", quote(ref, safe=""), *parts))


def allocation_path(ref: str) -> str:
    return f"/v1/allocations/{quote(ref, safe='')}"


def model_path(name: str, *parts: str) -> str:
    """Return the URL path of a model's deployment, or of a part of it."""
    return "/".join(("/v1/deployments", quote(name, safe=""), *parts))


def ask(
    profile: Profile,
    method: str,
    path: str,
    query: Query | None = None,
    body: object = None,
    answer_s: float = ANSWER_S,
) -> Json:
    """Send a request and return its JSON answer. Raises Declined, Unreachable or Cut."""
    payload = None if body is None else json.dumps(body).encode()
    return send(
        profile,
        method,
        path,
        query=query,
        payload=payload,
        content_type="application/json",
        answer_s=answer_s,
    )


def ask_all(profile: Profile, path: str, name: str, query: Query | None = None) -> list[Json]:
    """Return all rows of a list, page after page."""
    rows: list[Json] = []
    following: object = None
    while True:
        page = ask(profile, "GET", path, {**(query or {}), "after": following})
        rows += page[name]
        following = page.get("next")
        if not following:
            return rows


def send(
    profile: Profile,
    method: str,
    path: str,
    query: Query | None = None,
    payload: Payload = None,
    content_type: str = "application/octet-stream",
    answer_s: float = ANSWER_S,
) -> Json:
    """Send bytes or a file and return the JSON answer. Raises Declined, Unreachable or Cut."""
    with _answered(
        profile,
        method,
        path,
        query=query,
        payload=payload,
        content_type=content_type,
        answer_s=answer_s,
    ) as response:
        try:
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise Cut(
                f"{profile.url} broke off its answer to {method} {path}: {_error_text(error)}"
            ) from error
    return _object(data, f"{profile.url} answered {method} {path}")


def _object(data: bytes, what: str) -> Json:
    try:
        value = json.loads(data or b"{}")
    except ValueError as error:
        raise Cut(
            f"{what} with something that is not JSON: check that it is a Muster gateway"
        ) from error
    if not isinstance(value, dict):
        raise Cut(f"{what} with JSON that is not an object: check that it is a Muster gateway")
    return value


@contextmanager
def opened(
    profile: Profile, path: str, query: Query | None = None, silence_s: float | None = None
) -> Iterator["Stream"]:
    """Open an answer that is read while the gateway writes it.

    `silence_s` bounds the wait for the next bytes; None waits without a limit.
    """
    with _answered(profile, "GET", path, query=query) as response:
        _keep_alive(response, silence_s)
        yield Stream(response, f"{profile.url}{path}")


class Stream:
    """An open answer: its `headers`, and its content in pieces or in lines.

    Reading raises Cut if the connection breaks.
    """

    def __init__(self, response: http.client.HTTPResponse, what: str) -> None:
        self._response = response
        self._what = what
        self.headers = response.headers

    def pieces(self) -> Iterator[bytes]:
        while data := self._read():
            yield data

    def lines(self) -> Iterator[bytes]:
        rest = b""
        for piece in self.pieces():
            *whole, rest = (rest + piece).split(b"\n")
            yield from (line for line in whole if line.strip())
        if rest.strip():
            yield rest

    def _read(self) -> bytes:
        try:
            return self._response.read1(READ_BYTES)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Cut(f"the connection to {self._what} broke: {_error_text(error)}") from error


@contextmanager
def _answered(
    profile: Profile,
    method: str,
    path: str,
    query: Query | None = None,
    payload: Payload = None,
    content_type: str = "",
    answer_s: float = ANSWER_S,
) -> Iterator[http.client.HTTPResponse]:
    connection = _connection(profile)
    try:
        _connect(profile, connection)
        assert connection.sock is not None
        connection.sock.settimeout(answer_s)
        headers = headers_of(profile, content_type, payload)
        response = _exchange(
            profile,
            connection,
            method,
            target(profile, path, query),
            payload=payload,
            headers=headers,
        )
        if response.status >= 400:
            raise declined(profile, response.status, response.reason, _read_problem(response))
        yield response
    finally:
        connection.close()


def _exchange(
    profile: Profile,
    connection: http.client.HTTPConnection,
    method: str,
    target: str,
    payload: Payload,
    headers: dict[str, str],
) -> http.client.HTTPResponse:
    try:
        # The gateway may refuse a request before it has read the whole body.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.request(method, target, payload, headers)
        return connection.getresponse()
    except TimeoutError as error:
        raise Cut(
            f"{profile.url} did not answer {method} {target} in time; it may still carry out "
            "the request"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise Cut(
            f"{profile.url} broke the connection at {method} {target}: {_error_text(error)}"
        ) from error


def _connection(profile: Profile) -> http.client.HTTPConnection:
    try:
        parts = urlsplit(profile.url)
        port = parts.port
    except ValueError as error:
        raise Refused(
            f"the gateway's address {profile.url!r} (from {profile.source}) is not a URL: {error}"
        ) from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Refused(
            f"the gateway's address {profile.url!r} (from {profile.source}) must look like "
            "http://host:8080"
        )
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname, port, timeout=CONNECT_S)


def _connect(profile: Profile, connection: http.client.HTTPConnection) -> None:
    try:
        connection.connect()
    except OSError as error:
        raise Unreachable(
            f"no gateway answers at {profile.url} (from {profile.source}): {_error_text(error)}; "
            f"{_advice(profile)}"
        ) from error


def _advice(profile: Profile) -> str:
    """Return the advice that ends the message. `muster up` helps only with a cluster of its own."""
    if profile.source == "MUSTER_URL":
        return (
            "check the address and that its cluster runs, or unset MUSTER_URL to use the "
            "cluster of this machine"
        )
    if profile.state or profile.source == DEFAULT_SOURCE:
        return "start a cluster here with: muster up"
    return "check the address and that its cluster runs"


def target(profile: Profile, path: str, query: Query | None) -> str:
    given = {name: value for name, value in (query or {}).items() if value not in (None, "")}
    base = urlsplit(profile.url).path.rstrip("/")
    return base + path + ("?" + urlencode(given, doseq=True) if given else "")


def headers_of(profile: Profile, content_type: str = "", payload: Payload = None) -> dict[str, str]:
    """Return the headers of a request."""
    headers = {"Accept": "*/*", "User-Agent": "muster-cli"}
    if profile.key:
        headers["Authorization"] = f"Bearer {profile.key}"
    if content_type:
        headers["Content-Type"] = content_type
    if payload is not None and not isinstance(payload, bytes):
        headers["Content-Length"] = str(os.fstat(payload.fileno()).st_size)
    return headers


def declined(profile: Profile, status: int, reason: str, answer: bytes) -> Declined:
    """Return the gateway's refusal as an error, from its problem document."""
    body = _problem(answer)
    text = body.get("detail") or body.get("title") or f"{profile.url} answered {status} {reason}"
    if status == 401 and not profile.key:
        text = (
            f"{text} (no key is set: run muster login URL, set MUSTER_API_KEY, or start a cluster "
            "here with: muster up)"
        )
    elif status == 401:
        text = (
            f"the gateway at {profile.url} does not accept your key: check MUSTER_API_KEY, or log "
            f"in with another key: muster login {profile.url}"
        )
    candidates = body.get("candidates")
    if isinstance(candidates, list):
        text = f"{text}: {', '.join(map(str, candidates))}"
    return Declined(" ".join(str(text).split()), status, body)


def _read_problem(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read(PROBLEM_BYTES_MAX)
    except (OSError, http.client.HTTPException):
        return b""


def _problem(answer: bytes) -> dict[str, object]:
    try:
        value = json.loads(answer)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _keep_alive(response: http.client.HTTPResponse, silence_s: float | None) -> None:
    """Turn on TCP keepalive: a stream may be silent for hours, and its peer may disappear."""
    raw = getattr(getattr(response.fp, "raw", None), "_sock", None)
    if raw is None:
        return
    raw.settimeout(silence_s)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)


def _error_text(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
