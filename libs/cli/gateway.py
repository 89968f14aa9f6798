"""The requests of the verbs: the client's calls, with the errors of `faults.py` and their messages.

`libs/client/one_shot.py` sends them, and `libs/client/retries.py` says which are repeated. A person
waits for the answer, so a call is repeated for REPEAT_S only, and never if no gateway answers at
the address.
"""

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, Final

from libs.cli.faults import Cut, Declined, Unreachable
from libs.client import one_shot
from libs.client.calls import BYTES, JSON, READS, Call, job_path, pairs, path_of
from libs.client.errors import ApiError, Unavailable
from libs.client.profile import DEFAULT_SOURCE, Profile
from libs.client.retries import Retries
from libs.client.timing import ANSWER_S

REPEAT_S: Final = 2.0
# The beginning of a token of single sign-on.
SESSION: Final = "mss_"

Query = Mapping[str, object]
Json = dict[str, Any]
# A file is streamed, not read into memory.
Payload = bytes | IO[bytes] | None

__all__ = [
    "Json", "Query", "Stream", "allocation_path", "ask", "ask_all", "declined", "job_path",
    "model_path", "opened", "send",
]  # fmt: skip


def allocation_path(ref: str) -> str:
    return path_of("allocations", ref)


def model_path(name: str, *parts: str) -> str:
    """Return the URL path of a model's deployment, or of a part of it."""
    return path_of("deployments", name, *parts)


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
        content_type=JSON,
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
    content_type: str = BYTES,
    answer_s: float = ANSWER_S,
) -> Json:
    """Send bytes or a file and return the JSON answer. Raises Declined, Unreachable or Cut."""
    is_file = payload is not None and not isinstance(payload, bytes)
    call = Call(
        method=method,
        path=path,
        query=pairs(query or {}),
        content=payload if isinstance(payload, bytes) else b"",
        headers=(("Content-Type", content_type),) if isinstance(payload, bytes) else (),
        repeatable=method in READS,
        timeout_s=answer_s,
    )
    data = _sent(profile, call, payload if is_file else None)  # type: ignore[arg-type]
    return _object(data, f"{profile.url} answered {method} {path}")


def _sent(profile: Profile, call: Call, file: IO[bytes] | None) -> bytes:
    tries = Retries(call, REPEAT_S, time.monotonic())
    while True:
        try:
            if file is not None:
                file.seek(0)
            return one_shot.send(profile, call, file)
        except ApiError as error:
            pause_s = _pause_s(tries, error)
            if pause_s is None:
                raise fault_of(profile, error) from error
        time.sleep(pause_s)


def _pause_s(tries: Retries, error: ApiError) -> float | None:
    """Return the pause before the next try; None to give up."""
    if isinstance(error, Unavailable) and not error.sent:
        return None
    from random import random

    return tries.pause_s(error, time.monotonic(), random())  # nosec B311  it only spreads tries


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
    """Open an answer that is read while the gateway writes it. It is not repeated.

    `silence_s` bounds the wait for the next bytes; None waits without a limit. Raises Declined,
    Unreachable or Cut, also while the answer is read.
    """
    call = Call("GET", path, pairs(query or {}))
    try:
        with one_shot.opened(profile, call, silence_s) as stream:
            yield stream
    except ApiError as error:
        if isinstance(error, Declined | Unreachable | Cut):
            raise
        raise fault_of(profile, error) from error


Stream = one_shot.Stream


def fault_of(profile: Profile, error: ApiError) -> Declined | Unreachable | Cut:
    """Return the client's error as one of the command's, with advice for the person there."""
    if error.status:
        return _declined(profile, error)
    if isinstance(error, Unavailable) and not error.sent:
        return Unreachable(f"{error}; {_advice(profile)}")
    return Cut(str(error))


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


def declined(profile: Profile, status: int, answer: bytes) -> Declined:
    """Return the gateway's refusal as an error, from its problem document."""
    from libs.client.errors import error_of

    return _declined(profile, error_of(status, answer, profile.url))


def _declined(profile: Profile, error: ApiError) -> Declined:
    status, body = error.status, error.body
    text = error.detail
    if not (body.get("detail") or body.get("title")):
        text = f"{profile.url} answered {status} {http.client.responses.get(status, '')}".rstrip()
    if status == 401 and not profile.key:
        text = (
            f"{text} (no key is set: run muster login URL, set MUSTER_API_KEY, or start a cluster "
            "here with: muster up)"
        )
    elif status == 401 and profile.key.startswith(SESSION):
        text = (
            f"your session at {profile.url} has ended: sign in again with muster login "
            f"{profile.url} --sso"
        )
    elif status == 401:
        text = (
            f"the gateway at {profile.url} does not accept your key: check MUSTER_API_KEY, or log "
            f"in with another key: muster login {profile.url}"
        )
    return Declined(text, status, body)
