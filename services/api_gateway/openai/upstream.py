"""Sends requests to replicas over one HTTP client session, and tells which failures may be retried.

A request may be repeated while nothing was sent to the client. After a failure of one replica (no
connection, a connection that broke before the answer was complete, status 502 or 503) the gateway
tries *another* replica. It repeats a request at the *same* replica only if the client library
reports that the connection was closed before the request was written, because only then the replica
cannot have processed it. The session drops idle connections sooner than common servers do, so this
is rare.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from libs.common.errors import Refused
from libs.common.model import JobId
from libs.common.settings.settings import Settings
from libs.common.state.cluster import Endpoint
from services.api_gateway.openai.replica_exchange import Answered, Exchange

# The client's headers that are forwarded; its key never reaches a replica.
FORWARDED: Final = {b"traceparent": "traceparent", b"tracestate": "tracestate"}
URLS_KEPT_MAX: Final = 1_024
KEYS_KEPT_MAX: Final = 1_024
FAILURES: Final = (aiohttp.ClientError, OSError)

logger = logging.getLogger(__name__)


class NoKey(ConnectionError):
    """This gateway has no key for a replica, so the replica gets no request."""


class Upstream:
    """The HTTP session. It is created with the first request, because it needs a running loop.

    `replica_key` returns the key of a replica's attempt, or raises Refused.
    """

    def __init__(self, settings: Settings, replica_key: Callable[[JobId, int], str]) -> None:
        self.settings = settings
        self.replica_key = replica_key
        self._session: aiohttp.ClientSession | None = None
        self._exchanges: dict[tuple[Endpoint, str], Exchange] = {}
        self._keys: dict[Endpoint, str] = {}

    async def post(
        self,
        endpoint: Endpoint,
        path: str,
        headers: CIMultiDict[str],
        body: bytes | AsyncIterator[bytes],
    ) -> Answered:
        """Send a request and wait for the answer's headers. Raises one of FAILURES."""
        session = self._session or self._begin()
        if endpoint.keyed_attempt:
            headers = headers.copy()  # a second replica may get the same request with another key
            headers["authorization"] = f"Bearer {self._key(endpoint)}"
        if isinstance(body, bytes):
            exchange = self._exchanges.get((endpoint, path))
            if exchange is None:
                exchange = self._exchange(session, endpoint, path)
            return await exchange.send(headers.items(), body)
        return await session.post(
            _url(endpoint, path), data=body, headers=headers, allow_redirects=False
        )

    def _begin(self) -> aiohttp.ClientSession:
        # Connections are as many as open requests, which the gateway bounds.
        connector = aiohttp.TCPConnector(
            limit=0, keepalive_timeout=self.settings.model_keepalive_ms / 1_000, use_dns_cache=True
        )
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self.settings.model_connect_ms / 1_000
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("accept", "accept-encoding", "user-agent"),
        )
        return self._session

    def _exchange(self, session: aiohttp.ClientSession, endpoint: Endpoint, path: str) -> Exchange:
        if len(self._exchanges) >= URLS_KEPT_MAX:
            del self._exchanges[next(iter(self._exchanges))]  # the oldest
        place = aiohttp.ClientRequest(
            "POST", _url(endpoint, path), loop=asyncio.get_running_loop(), session=session
        )
        found = self._exchanges[endpoint, path] = Exchange(session, place)
        return found

    def _key(self, endpoint: Endpoint) -> str:
        """Return the replica's key. Raises NoKey if this gateway has none."""
        found = self._keys.get(endpoint)
        if found is None:
            try:
                found = self.replica_key(endpoint.job_id, endpoint.keyed_attempt)
            except Refused as error:
                logger.error("replica %s gets no requests: %s", endpoint.job_id, error)
                raise NoKey(str(error)) from error
            if len(self._keys) >= KEYS_KEPT_MAX:
                del self._keys[next(iter(self._keys))]  # the oldest
            self._keys[endpoint] = found
        return found

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None
            self._exchanges.clear()


def _url(endpoint: Endpoint, path: str) -> URL:
    return URL.build(scheme="http", host=endpoint.address, port=endpoint.port, path=path)


def headers_for(request_id: str, given: Mapping[bytes, bytes]) -> CIMultiDict[str]:
    """Return the headers of a request to a replica."""
    headers = CIMultiDict({"content-type": "application/json", "x-request-id": request_id})
    for name, forwarded in FORWARDED.items():
        if name in given:
            headers[forwarded] = given[name].decode("latin-1")
    return headers


def never_sent(error: BaseException) -> bool:
    """Return whether the connection closed before the whole request had been written to it."""
    return isinstance(error, aiohttp.ClientConnectionResetError) or isinstance(
        error.__cause__, aiohttp.ClientConnectionResetError
    )


def unprocessed(error: BaseException) -> bool:
    """Return whether no replica can have worked on the request."""
    return isinstance(
        error, NoKey | aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError
    ) or never_sent(error)


def describe(error: BaseException) -> str:
    """Describe a failure in words, without the replica's address."""
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return "did not accept a connection"
    if isinstance(error, NoKey):
        return "was not asked, because this gateway has no key for it"
    if isinstance(error, asyncio.TimeoutError):
        return "did not answer in time"
    return "closed the connection before its answer was complete"
