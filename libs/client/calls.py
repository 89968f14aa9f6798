"""One request to the gateway as a value: method, path, query, body, and when it may be repeated.

Pure. Tests: tests/unit/test_client_calls.py.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

from libs.client.errors import ApiError

T = TypeVar("T")

READS: Final = ("GET", "HEAD")
JSON: Final = "application/json"
BYTES: Final = "application/octet-stream"
IDEMPOTENCY_HEADER: Final = "Idempotency-Key"


class Call(NamedTuple):
    """A request.

    `content` is the encoded body, empty for none. `repeatable`: to send it twice changes nothing,
    so it is repeated after a broken connection. `timeout_s` is the longest wait for the answer; 0
    is the client's own.
    """

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    content: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    repeatable: bool = False
    timeout_s: float = 0.0

    @property
    def what(self) -> str:
        """Return the request in words, for messages."""
        return f"{self.method} {self.path}"


def reading(path: str, query: Mapping[str, object] | None = None, timeout_s: float = 0.0) -> Call:
    """Return a GET, which is always repeatable."""
    return Call("GET", path, pairs(query or {}), repeatable=True, timeout_s=timeout_s)


def changing(
    method: str,
    path: str,
    body: Mapping[str, object] | None = None,
    key: str = "",
    repeatable: bool = False,
    query: Mapping[str, object] | None = None,
) -> Call:
    """Return a request that changes something, with a JSON body.

    Members of the body that are None are left out. A request with an idempotency key is repeatable.
    """
    headers: tuple[tuple[str, str], ...] = ((IDEMPOTENCY_HEADER, key),) if key else ()
    import msgspec  # a command that only reads does without it

    given = None if body is None else {name: v for name, v in body.items() if v is not None}
    return Call(
        method=method,
        path=path,
        query=pairs(query or {}),
        content=b"" if given is None else msgspec.json.encode(given),
        headers=headers if given is None else (*headers, ("Content-Type", JSON)),
        repeatable=repeatable or bool(key),
    )


def pairs(query: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """Return the parameters of a query string, without those that are None or empty."""
    return tuple(
        (name, _text(each))
        for name, value in query.items()
        for each in (value if isinstance(value, list | tuple) else (value,))
        if each is not None and each != ""
    )


def _text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def path_of(*parts: str) -> str:
    """Return the URL path of these parts below /v1, with every part quoted."""
    return "/".join(("/v1", *(quote(part, safe="") for part in parts)))


def job_path(ref: str, *parts: str) -> str:
    """Return the path of a job.

    `ref` is an id, a unique prefix of one, a name, or MODEL/REPLICA.
    """
    model, slash, replica = ref.rpartition("/")
    return path_of("jobs", f"{model}-{replica}" if slash else ref, *parts)


def decoded(data: bytes, kind: type[T], what: str) -> T:
    """Return the answer as a `kind`. Unknown members are ignored, missing ones get their default.

    Raises ApiError if the answer is not of that form.
    """
    import msgspec

    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(
            f"{what} was answered with something that this client does not understand: {error}; "
            "check that the address is a Muster gateway, and update the client"
        ) from error


def member(data: bytes, name: str, kind: type[T], what: str) -> tuple[T, Any]:
    """Return the rows of a list and the cursor `next`.

    Raises ApiError if the answer is not such a list.
    """
    import msgspec

    found = decoded(data, dict[str, msgspec.Raw], what)
    rows = decoded(bytes(found.get(name, msgspec.Raw(b"[]"))), kind, what)
    return rows, decoded(bytes(found.get("next", msgspec.Raw(b"null"))), object, what)
