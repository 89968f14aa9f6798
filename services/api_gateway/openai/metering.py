"""The hook of the limits on requests and tokens: reserved before dispatch in the worst case,
settled after by what was used.

The protocol stands here, beside its caller. `reserve` must not give out twice what one ledger
holds, whatever is concurrent; what is never settled with a number stays charged as it was reserved,
so that a client that goes away cannot use more than it reserved.
"""

from typing import Final, NamedTuple, Protocol

from services.api_gateway.access.auth import Principal

Headers = tuple[tuple[bytes, bytes], ...]


class Grant(NamedTuple):
    """Leave for one request.

    `headers` are the x-ratelimit-* of its answer, `window` the minute whose budget it was taken
    from.
    """

    tenant: str
    model: str
    tokens: int
    headers: Headers = ()
    window: int = 0


class Meter(Protocol):
    """Where the tokens of limited tenants are counted."""

    def counts(self, principal: Principal) -> bool:
        """Whether this principal's requests have a limit; if not, neither of the others
        is called.
        """
        ...

    async def reserve(self, principal: Principal, model: str, tokens: int) -> Grant:
        """Take one request and `tokens`.

        Raises errors.RateLimited (429), or ApiError 503 when nobody can say.
        """
        ...

    def settle(self, grant: Grant, tokens: int | None) -> None:
        """Give back what was not used.

        `tokens`: as the replica counted, 0 if none was reached, None if not known: all stays taken.
        """
        ...


UNLIMITED: Final = Grant("", "", 0)
