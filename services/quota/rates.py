"""The ledger of requests and tokens per minute: how much of each account's present minute the
gateways got.

Pure; time is an argument (nanoseconds of the wall clock, never backwards). A minute's budget is
given out once. A process that has just started does not know what its predecessor gave, so it gives
nothing until the next minute. Tests: tests/unit/test_quota_rates.py, and
tests/integration/test_rate_limits.py with two gateways.
"""

from typing import Final

import msgspec

from libs.common.messages.rate_messages import Slice, SliceAsk, SliceReturn
from libs.common.model import TenantId
from libs.common.state.rate_limits import RateLimits

WINDOW_NS: Final = 60_000_000_000
# A slice is this part of a minute's budget, or the request if that is more. With small slices an
# idle gateway holds little.
SLICES: Final = 32
# Bound on the count for accounts without a limit, so that numbers from outside cannot grow without
# end.
COUNT_MAX: Final = 1 << 62


class Given(msgspec.Struct):
    """The requests and tokens of one account that gateways got in the current minute."""

    requests: int = 0
    tokens: int = 0


class Rates:
    """The ledger of one quota process."""

    def __init__(self, began_ns: int) -> None:
        self.window = self.closed = began_ns // WINDOW_NS
        self.given: dict[tuple[TenantId, str], Given] = {}

    def reserve(self, account: RateLimits, ask: SliceAsk, now_ns: int) -> Slice:
        """Return a slice of the account that covers the request, or an empty one."""
        self._advance(now_ns)
        left_ms = ((self.window + 1) * WINDOW_NS - now_ns) // 1_000_000
        limits = account.requests_per_minute, account.tokens_per_minute
        if self.window <= self.closed:
            return Slice(self.window, left_ms, False, 0, 0, *limits, starting=True)
        given = self.given.setdefault((ask.tenant, ask.account), Given())
        requests = _part(limits[0], given.requests, ask.requests)
        tokens = _part(limits[1], given.tokens, ask.tokens)
        granted = requests >= ask.requests and tokens >= ask.tokens
        if not granted:
            requests = tokens = 0
        given.requests, given.tokens = (
            min(given.requests + requests, COUNT_MAX),
            min(given.tokens + tokens, COUNT_MAX),
        )
        left = max(0, limits[0] - given.requests), max(0, limits[1] - given.tokens)
        return Slice(self.window, left_ms, granted, requests, tokens, *limits, *left)

    def take_back(self, back: SliceReturn, now_ns: int) -> None:
        """Take back what a gateway does not need of the present minute; slices of earlier minutes
        are ignored.
        """
        self._advance(now_ns)
        given = self.given.get((back.tenant, back.account))
        if given is not None and back.window == self.window:
            given.requests = max(0, given.requests - max(0, back.requests))
            given.tokens = max(0, given.tokens - max(0, back.tokens))

    def _advance(self, now_ns: int) -> None:
        """Move to the present minute, and never back to an earlier one."""
        window = now_ns // WINDOW_NS
        if window > self.window:
            self.window = window
            self.given.clear()


def _part(limit: int, given: int, asked: int) -> int:
    """Return how much of the limit can be given; less than `asked` if there is not enough left."""
    asked = min(max(0, asked), COUNT_MAX)
    return asked if limit == 0 else min(max(asked, limit // SLICES), max(0, limit - given))
