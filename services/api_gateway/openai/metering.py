"""The interface for limits on requests and tokens: reserve the most that a request can use before
dispatch, settle the real use afterwards.

The protocol stands here, beside its caller. Concurrent calls of `reserve` must not get the same
tokens of the ledger. A request that is never settled with a number stays charged as reserved. A
client that disconnects pays for what it reserved, or for the events that it got if those are more.
"""

from typing import Final, NamedTuple, Protocol

from services.api_gateway.access.auth import Principal

Headers = tuple[tuple[bytes, bytes], ...]


class Part(NamedTuple):
    """A request's part of one account's budget for the minute `window`."""

    tenant: str
    account: str
    requests: int
    tokens: int
    window: int


class Grant(NamedTuple):
    """The permission for one request.

    `headers` are the x-ratelimit-* of its answer. `parts` are what it took from each account.
    """

    tenant: str
    model: str
    tokens: int
    headers: Headers = ()
    parts: tuple[Part, ...] = ()


class Meter(Protocol):
    """Counts the tokens of tenants, keys and models with limits."""

    def counts(self, principal: Principal, model: str) -> bool:
        """Return whether the principal's requests to this model have a limit.

        If not, the other methods are not called.
        """
        ...

    async def reserve(self, principal: Principal, model: str, tokens: int) -> Grant:
        """Reserve one request and `tokens`.

        Raises errors.RateLimited (429), or ApiError 503 if quota does not answer.
        """
        ...

    def settle(self, grant: Grant, tokens: int | None) -> None:
        """Give back what was not used.

        `tokens`: as the replica counted; 0 if no replica was reached; None if unknown, then all
        stays used.
        """
        ...


UNLIMITED: Final = Grant("", "", 0)
