"""One gateway's part of an account's limits in the current minute.

Quota gives slices to this gateway alone, which spends them without asking. Pure; time is an
argument (nanoseconds of a clock that never goes back). Tests: tests/unit/test_openai_purse.py.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from libs.common.messages.rate_messages import Slice, SliceAsk, SliceReturn
from libs.common.model import TenantId
from libs.common.state.rate_limits import OF_TENANT
from services.api_gateway.openai.metering import Headers

# After quota refused, wait this long before asking again. Other gateways may return something.
REFUSED_NS: Final = 100_000_000
# Settled tokens above this part of the limit go back to quota: another gateway may need them.
KEPT_PART: Final = 16


class Need(NamedTuple):
    """The most that one request can use; 0 for a quantity without a limit."""

    requests: int
    tokens: int


NO_NEED: Final = Need(0, 0)


class Shown(NamedTuple):
    """One limit as a client sees it: its quantity, what is left, and when it is reset."""

    name: bytes
    limit: int
    left: int
    reset: bytes


class Purse:
    """The requests and tokens of one account that this gateway may spend.

    `account` is its name (`rate_limits.py`), empty for the tenant's own. `window` is the minute of
    the contents, which are void from `until_ns` on. `last` is quota's last answer. `set_aside` is
    kept for the request that waits for quota's answer.
    """

    def __init__(self, tenant: TenantId, account: str = OF_TENANT) -> None:
        self.tenant = tenant
        self.account = account
        self.window = -1
        self.until_ns = 0
        self.requests = 0
        self.tokens = 0
        self.set_aside = NO_NEED
        self.last = Slice(-1, 0, False)
        self.refused_tokens = 0
        self.refused_until_ns = 0

    def take(self, need: Need, now_ns: int) -> bool:
        """Take `need`; return False and take nothing if the purse holds too little."""
        if now_ns >= self.until_ns or self.requests < need.requests or self.tokens < need.tokens:
            return False
        self.requests -= need.requests
        self.tokens -= need.tokens
        return True

    def refused(self, need: Need, now_ns: int) -> bool:
        """Return whether quota has just refused this much, or less, in this minute. Asking again
        would be in vain.
        """
        return (
            now_ns < min(self.refused_until_ns, self.until_ns)
            and need.tokens >= self.refused_tokens
        )

    def ask(self, need: Need, now_ns: int) -> SliceAsk:
        """Return a request to quota for the part of the need that the purse lacks.

        The other part is set aside, so that no other request takes it before quota answers.
        """
        if now_ns < self.until_ns:
            self.set_aside = Need(min(self.requests, need.requests), min(self.tokens, need.tokens))
            self.requests -= self.set_aside.requests
            self.tokens -= self.set_aside.tokens
        return SliceAsk(
            self.tenant,
            need.requests - self.set_aside.requests,
            need.tokens - self.set_aside.tokens,
            self.account,
        )

    def put_back(self) -> None:
        """Put back what `ask` set aside, because quota has answered or will not answer."""
        self.requests += self.set_aside.requests
        self.tokens += self.set_aside.tokens
        self.set_aside = NO_NEED

    def put(self, given: Slice, need: Need, asked_ns: int) -> None:
        """Put quota's answer to the request of `asked_ns` into the purse.

        The minute's rest is counted from `asked_ns`, so the minute ends here no later than at
        quota. Each further answer of a minute may extend it.
        """
        if given.window > self.window:
            self.window, self.requests, self.tokens, self.until_ns = given.window, 0, 0, 0
        if given.window == self.window:
            self.until_ns = max(self.until_ns, asked_ns + given.left_ms * 1_000_000)
        self.last = given
        if given.given and given.window == self.window:
            self.requests += given.requests
            self.tokens += given.tokens
        else:
            self.refused_tokens, self.refused_until_ns = need.tokens, asked_ns + REFUSED_NS

    def settle(self, window: int, reserved: int, used: int, now_ns: int) -> SliceReturn | None:
        """Put back the tokens that a request reserved and did not use.

        Return the surplus that this gateway does not need, for quota; None if there is none.
        """
        if window != self.window or now_ns >= self.until_ns or reserved == 0:
            return None
        self.tokens += reserved - used
        kept = self.last.tokens_limit // KEPT_PART
        surplus = self.tokens - kept
        if self.last.tokens_limit == 0 or surplus <= kept:
            return None
        self.tokens = kept
        return SliceReturn(self.tenant, window, 0, surplus, self.account)

    def give_back(self, window: int, need: Need, now_ns: int) -> None:
        """Put back what a request took that was refused elsewhere."""
        if window == self.window and now_ns < self.until_ns:
            self.requests += need.requests
            self.tokens += need.tokens

    def shown(self, now_ns: int) -> list[Shown]:
        """Return the limits of this account.

        What is left is what quota had left at its last answer, and what this purse holds. Other
        gateways may have used some since.
        """
        last = self.last
        reset = _duration(max(0, self.until_ns - now_ns) // 1_000_000).encode()
        return [
            Shown(name, limit, min(limit, max(0, left)), reset)
            for name, limit, left in (
                (b"requests", last.requests_limit, last.requests_left + self.requests),
                (b"tokens", last.tokens_limit, last.tokens_left + self.tokens),
            )
            if limit
        ]

    def headers(self, now_ns: int) -> Headers:
        """Return OpenAI's x-ratelimit-* headers for this account."""
        return tuple(header for shown in self.shown(now_ns) for header in _headers(shown))


def headers_of(limits: Iterable[Shown]) -> Headers:
    """Return OpenAI's x-ratelimit-* headers: of several limits the one of which least is left."""
    least: dict[bytes, Shown] = {}
    for each in limits:
        if each.name not in least or each.left < least[each.name].left:
            least[each.name] = each
    return tuple(header for shown in least.values() for header in _headers(shown))


def _headers(shown: Shown) -> Headers:
    name, limit, left, reset = shown
    return (
        (b"x-ratelimit-limit-" + name, b"%d" % limit),
        (b"x-ratelimit-remaining-" + name, b"%d" % left),
        (b"x-ratelimit-reset-" + name, reset),
    )


def _duration(milliseconds: int) -> str:
    return f"{milliseconds}ms" if milliseconds < 1_000 else f"{milliseconds / 1_000:.3g}s"
