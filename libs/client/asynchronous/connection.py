"""Requests to a gateway over pooled connections, with retries and typed errors.

Tests: tests/integration/test_client_http.py.
"""

import random
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import BinaryIO, Final, TypeVar

import httpx2

from libs.client import calls
from libs.client.asynchronous.pauses import Places, in_thread, pause
from libs.client.calls import BYTES, Call
from libs.client.errors import ApiError, InvalidRequest, Unavailable, error_of
from libs.client.profile import Profile
from libs.client.retries import Retries
from libs.client.timing import Timing, poll_s

T = TypeVar("T")

READ_BYTES: Final = 1 << 20
PROBLEM_BYTES_MAX: Final = 65_536
# Long polls that are open at one time; further ones take turns.
POLLS_AT_ONCE: Final = 256
USER_AGENT: Final = "muster-python"


class AsyncConnection:
    """The way to one gateway. At most `calls_at_once` calls are open; streams are not counted."""

    def __init__(self, profile: Profile, timing: Timing, calls_at_once: int) -> None:
        self.profile = profile
        self.timing = timing
        self._places = Places(calls_at_once)
        self._polls = Places(POLLS_AT_ONCE)
        self._waiting: set[object] = set()
        headers = {"User-Agent": USER_AGENT, "Accept": "*/*"}
        if profile.key:
            headers["Authorization"] = f"Bearer {profile.key}"
        self._http = httpx2.AsyncClient(
            base_url=_address(profile),
            headers=headers,
            timeout=_timeout(timing, timing.timeout_s),
            limits=httpx2.Limits(
                max_connections=None,
                max_keepalive_connections=calls_at_once,
                keepalive_expiry=timing.idle_s,
            ),
            # A proxy or a .netrc file of the environment must not get or change the key.
            trust_env=False,
            verify=ssl.create_default_context() if profile.url.startswith("https") else False,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    @asynccontextmanager
    async def long_poll(self) -> AsyncIterator[float]:
        """Take a place for a long poll, and give the longest time that it may take in seconds.

        Long polls have places of their own, so that calls never wait behind them.
        """
        poll = object()
        self._waiting.add(poll)
        try:
            async with self._polls:
                yield poll_s(len(self._waiting), POLLS_AT_ONCE)
        finally:
            self._waiting.discard(poll)

    def by_user(self, body: Mapping[str, object]) -> dict[str, object]:
        """Return a body with the user of the profile, if it names none itself."""
        named = {"user": self.profile.user} if self.profile.user else {}
        own = body.get("user") or body.get("user_id")
        return dict(body) if own else {**named, **body}

    async def ask(self, call: Call, kind: type[T]) -> T:
        """Send a call and return its JSON answer as a `kind`. Raises ApiError."""
        return calls.decoded(await self.send(call), kind, call.what)

    async def send(self, call: Call, content: Callable[[], BinaryIO] | None = None) -> bytes:
        """Send a call and return the answer's bytes. Raises ApiError.

        `content` opens the file to send, again for each try.
        """
        tries = Retries(call, self.timing.retry_s, time.monotonic())
        while True:
            try:
                async with self._places:
                    return await self.once(call, content)
            except ApiError as error:
                await _again(tries, error)

    async def read(self, call: Call, bytes_max: int) -> bytes:
        """Return at most `bytes_max` + 1 bytes of a streamed answer. Raises ApiError."""
        tries = Retries(call, self.timing.retry_s, time.monotonic())
        while True:
            found = bytearray()
            try:
                async with self._places, self.opened(call) as answer:
                    async for piece in answer.aiter_bytes():
                        found += piece
                        if len(found) > bytes_max:
                            break
                return bytes(found[: bytes_max + 1])
            except ApiError as error:
                await _again(tries, error)

    async def once(self, call: Call, content: Callable[[], BinaryIO] | None = None) -> bytes:
        """Send a call without repeating it, and return the answer's bytes. Raises ApiError."""
        try:
            if content is None:
                answer = await self._http.send(self._request(call, call.content))
            else:
                with content() as file:
                    answer = await self._http.send(self._request(call, _pieces(file)))
        except (httpx2.TransportError, httpx2.InvalidURL) as fault:
            raise self._no_answer(call, fault) from fault
        if answer.status_code >= 400:
            raise _refusal(call, answer, answer.content)
        return answer.content

    def _request(self, call: Call, content: bytes | AsyncIterator[bytes]) -> httpx2.Request:
        headers = dict(call.headers)
        if not isinstance(content, bytes):
            headers["Content-Type"] = BYTES
        return self._http.build_request(
            call.method,
            call.path,
            params=call.query,
            content=content,
            headers=headers,
            timeout=_timeout(self.timing, call.timeout_s or self.timing.timeout_s),
        )

    @asynccontextmanager
    async def opened(self, call: Call) -> AsyncIterator[httpx2.Response]:
        """Open an answer that is read while the gateway writes it. It is not repeated.

        The gateway sends something every few seconds, so `timeout_s` of the call bounds a silence.
        Raises ApiError, also while the answer is read.
        """
        try:
            answer = await self._http.send(self._request(call, call.content), stream=True)
            try:
                if answer.status_code >= 400:
                    raise _refusal(call, answer, await _beginning(answer))
                yield answer
            finally:
                await answer.aclose()
        except (httpx2.TransportError, httpx2.InvalidURL) as fault:
            raise self._no_answer(call, fault) from fault

    def _no_answer(self, call: Call, fault: Exception) -> ApiError:
        where = f"{self.profile.url} (from {self.profile.source})"
        text = str(fault) or type(fault).__name__
        if isinstance(fault, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.InvalidURL):
            return Unavailable(
                f"no gateway answers at {where}: {text}; check the address and that its cluster "
                "runs",
                sent=False,
            )
        return Unavailable(
            f"{where} did not answer {call.what}: {text}; it may still carry out the request"
        )


async def _again(tries: Retries, error: ApiError) -> None:
    """Pause before the next try. Raises the error if there is none."""
    chance = random.random()  # nosec B311  it only spreads the tries of many clients
    pause_s = tries.pause_s(error, time.monotonic(), chance)
    if pause_s is None:
        raise error
    await pause(pause_s)


def _address(profile: Profile) -> str:
    """Return the gateway's address. Raises InvalidRequest if it is not an HTTP URL."""
    try:
        url = httpx2.URL(profile.url)
    except httpx2.InvalidURL as error:
        raise InvalidRequest(
            f"url: {profile.url!r} (from {profile.source}) is not a URL: {error}"
        ) from error
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidRequest(
            f"url: {profile.url!r} (from {profile.source}) must look like http://host:8080"
        )
    return profile.url


def _timeout(timing: Timing, answer_s: float) -> httpx2.Timeout:
    return httpx2.Timeout(answer_s, connect=timing.connect_s, pool=None)


def _refusal(call: Call, answer: httpx2.Response, content: bytes) -> ApiError:
    return error_of(answer.status_code, content, call.what, answer.headers.get("retry-after", ""))


async def _beginning(answer: httpx2.Response) -> bytes:
    """Return the first bytes of an answer, enough for a problem document."""
    found = b""
    async for piece in answer.aiter_bytes():
        found += piece
        if len(found) >= PROBLEM_BYTES_MAX:
            break
    return found[:PROBLEM_BYTES_MAX]


async def _pieces(file: BinaryIO) -> AsyncIterator[bytes]:
    while data := await in_thread(file.read, READ_BYTES):
        yield data
