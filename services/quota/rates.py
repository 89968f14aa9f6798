"""The ledger of requests and tokens per minute: how much of each account's present minute the
gateways got.

Pure; time is an argument (nanoseconds of `LedgerTime`: never backwards, and never before the
present minute). A minute's budget is given out once, also over a restart: before an answer leaves,
`kept_rates.py` stores a mark that the account has not passed yet, and a process that takes over
counts everything up to the mark as given. So a restart costs an account at most one step of its
limit in that minute. A process that cannot read the marks gives nothing until the next minute.
Tests: tests/unit/test_quota_rates.py, and tests/integration/test_rate_limits.py with two gateways.
"""

import zlib
from collections.abc import Iterable
from typing import Final

import msgspec

from libs.common.messages.rate_messages import Slice, SliceAsk, SliceReturn
from libs.common.model import TenantId
from libs.common.state.rate_limits import RateLimits

WINDOW_NS: Final = 60_000_000_000
# A slice is this part of a minute's budget, or the request if that is more. With small slices an
# idle gateway holds little.
SLICES: Final = 32
# A mark is a multiple of this part of a minute's budget, so that few answers wait for a store.
MARKS: Final = 8
# Accounts are stored in this many pages.
PAGES: Final = 16
# Bound on the count for accounts without a limit, so that numbers from outside cannot grow without
# end.
COUNT_MAX: Final = 1 << 62


class Given(msgspec.Struct):
    """The requests and tokens of one account that gateways got in the current minute."""

    requests: int = 0
    tokens: int = 0


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """The part of an account's budget that may have been given; 0 for a part without a limit."""

    tenant: TenantId
    account: str
    requests: int
    tokens: int


class Page(msgspec.Struct, frozen=True, array_like=True):
    """The marks of one part of the accounts in one minute, as quota's term `epoch` stored them."""

    epoch: int
    window: int
    marks: tuple[Mark, ...]


Account = tuple[TenantId, str]


def page_of(account: Account) -> int:
    """Return the number of the page that holds the account's mark."""
    return zlib.crc32("\n".join(account).encode()) % PAGES


class Rates:
    """The ledger of one quota process. It gives nothing in the minute `closed`."""

    def __init__(self, began_ns: int) -> None:
        self.window = self.closed = began_ns // WINDOW_NS
        self.given: dict[Account, Given] = {}
        self.limits: dict[Account, tuple[int, int]] = {}
        self.marks: dict[Account, Given] = {}
        # The part of `given` that other processes gave at most, by their marks.
        self.restored: dict[Account, Given] = {}

    def restore(self, pages: Iterable[Page]) -> None:
        """Count what an earlier process gave, by all of its pages, and begin to give if this one
        has not.
        """
        self.closed = 0
        for page in pages:
            self.merge(page)

    def merge(self, page: Page) -> None:
        """Count everything up to the marks of another process's page as given, besides what this
        process gave. An older minute is ignored. A later one becomes the present minute, because
        the gateways may know it. It ends at most a minute from now (`LedgerTime`).

        The marks are stored again with each page of this process, because the next process reads
        only the newest one.
        """
        self._advance(page.window * WINDOW_NS)
        if page.window != self.window:
            return
        for mark in page.marks:
            account = mark.tenant, mark.account
            known = self.restored.setdefault(account, Given())
            given = self.given.setdefault(account, Given())
            given.requests += max(0, mark.requests - known.requests)
            given.tokens += max(0, mark.tokens - known.tokens)
            known.requests = max(known.requests, mark.requests)
            known.tokens = max(known.tokens, mark.tokens)

    def is_covered(self, account: Account) -> bool:
        """Return whether a stored mark covers all that the account got in the present minute."""
        limits, given = self.limits.get(account, (0, 0)), self.given.get(account, Given())
        mark = self.marks.get(account, Given())
        return (not limits[0] or given.requests <= mark.requests) and (
            not limits[1] or given.tokens <= mark.tokens
        )

    def page(self, number: int, epoch: int) -> Page:
        """Return the page to store: a mark for each of its accounts that have a limit, or had one
        in an earlier process's page of this minute.
        """
        accounts = dict.fromkeys((*self.limits, *self.restored))
        return Page(
            epoch,
            self.window,
            tuple(self._mark_of(account) for account in accounts if page_of(account) == number),
        )

    def _mark_of(self, account: Account) -> Mark:
        given, limits = self.given[account], self.limits.get(account)
        if limits is None:
            return Mark(*account, given.requests, given.tokens)
        return Mark(*account, _mark(limits[0], given.requests), _mark(limits[1], given.tokens))

    def stored(self, page: Page) -> None:
        """Note that the page is stored."""
        if page.window == self.window:
            for mark in page.marks:
                self.marks[(mark.tenant, mark.account)] = Given(mark.requests, mark.tokens)

    def reserve(self, account: RateLimits, ask: SliceAsk, now_ns: int) -> Slice:
        """Return a slice of the account that covers the request, or an empty one."""
        self._advance(now_ns)
        left_ms = ((self.window + 1) * WINDOW_NS - now_ns) // 1_000_000
        limits = account.requests_per_minute, account.tokens_per_minute
        if self.window <= self.closed:
            return Slice(self.window, left_ms, False, 0, 0, *limits, starting=True)
        given = self.given.setdefault((ask.tenant, ask.account), Given())
        if any(limits):
            self.limits[(ask.tenant, ask.account)] = limits
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

    def confirmed(self, ask: SliceAsk, answer: Slice) -> Slice:
        """Return the answer, or an empty one if a page that was merged since leaves no room for the
        slice, which is taken back then.
        """
        given = self.given.get((ask.tenant, ask.account), Given())
        is_over = (answer.requests_limit and given.requests > answer.requests_limit) or (
            answer.tokens_limit and given.tokens > answer.tokens_limit
        )
        if not answer.given or answer.window != self.window or not is_over:
            return answer
        given.requests = max(0, given.requests - answer.requests)
        given.tokens = max(0, given.tokens - answer.tokens)
        return msgspec.structs.replace(answer, given=False, requests=0, tokens=0)

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
            for each in (self.given, self.limits, self.marks, self.restored):
                each.clear()


def _part(limit: int, given: int, asked: int) -> int:
    """Return how much of the limit can be given; less than `asked` if there is not enough left."""
    asked = min(max(0, asked), COUNT_MAX)
    return asked if limit == 0 else min(max(asked, limit // SLICES), max(0, limit - given))


def _mark(limit: int, given: int) -> int:
    """Return the mark that covers `given`: the next step of the limit; 0 without a limit."""
    step = max(1, limit // MARKS)
    return max(given, min(limit, -(-given // step) * step)) if limit else 0
