"""One gateway's share of a tenant's present minute: slices that quota gave to this gateway alone,
spent without asking.

Pure; time comes in as an argument (nanoseconds of a clock that never goes back). Held by
tests/unit/test_openai_purse.py.
"""

from typing import Final, NamedTuple

from libs.common.messages.rate_messages import Slice, SliceAsk, SliceReturn
from libs.common.model import TenantId
from services.api_gateway.openai.metering import Headers

# After a refusal of quota, wait this long before asking again: others may give something back.
REFUSED_NS: Final = 100_000_000
# Settled tokens above this part of the limit go back to quota, for another gateway may need them.
KEPT_PART: Final = 16


class Need(NamedTuple):
    """The worst case of one request; 0 for a quantity without a limit."""

    requests: int
    tokens: int


NOTHING: Final = Need(0, 0)


class Purse:
    """The requests and tokens that this gateway may spend.

    `window` is the minute of the contents, which are void from `until_ns` on. `last` is quota's
    last answer. `aside` belongs to the request for which quota is being asked.
    """

    def __init__(self, tenant: TenantId) -> None:
        self.tenant = tenant
        self.window = -1
        self.until_ns = 0
        self.requests = 0
        self.tokens = 0
        self.aside = NOTHING
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
        """Whether asking for as much would be in vain: quota has just said no to no more than that,
        in this minute.
        """
        return (
            now_ns < min(self.refused_until_ns, self.until_ns)
            and need.tokens >= self.refused_tokens
        )

    def ask(self, need: Need, now_ns: int) -> SliceAsk:
        """What is missing.

        What is here of the need is set aside meanwhile: nobody else may take it before the rest
        comes.
        """
        if now_ns < self.until_ns:
            self.aside = Need(min(self.requests, need.requests), min(self.tokens, need.tokens))
            self.requests -= self.aside.requests
            self.tokens -= self.aside.tokens
        return SliceAsk(
            self.tenant, need.requests - self.aside.requests, need.tokens - self.aside.tokens
        )

    def put_back(self) -> None:
        """What was set aside; quota has answered, or never will."""
        self.requests += self.aside.requests
        self.tokens += self.aside.tokens
        self.aside = NOTHING

    def put(self, given: Slice, need: Need, asked_ns: int) -> None:
        """Quota's answer to what was asked at `asked_ns`.

        It is counted from then, so it is over here no later than there; each answer of a minute may
        tell better how long it lasts.
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
        """What was reserved and not used is here again; what is more than this gateway needs goes
        back to quota.
        """
        if window != self.window or now_ns >= self.until_ns or reserved == 0:
            return None
        self.tokens += reserved - used
        kept = self.last.tokens_limit // KEPT_PART
        surplus = self.tokens - kept
        if self.last.tokens_limit == 0 or surplus <= kept:
            return None
        self.tokens = kept
        return SliceReturn(self.tenant, window, 0, surplus)

    def headers(self, now_ns: int) -> Headers:
        """x-ratelimit-* as OpenAI names them; what is remaining is this gateway's best knowledge of
        all gateways.
        """
        last, shown = self.last, []
        reset = _duration(max(0, self.until_ns - now_ns) // 1_000_000).encode()
        for name, limit, left in (
            (b"requests", last.requests_limit, last.requests_left + self.requests),
            (b"tokens", last.tokens_limit, last.tokens_left + self.tokens),
        ):
            if limit:
                shown.append((b"x-ratelimit-limit-" + name, b"%d" % limit))
                shown.append((b"x-ratelimit-remaining-" + name, b"%d" % min(limit, max(0, left))))
                shown.append((b"x-ratelimit-reset-" + name, reset))
        return tuple(shown)


def _duration(milliseconds: int) -> str:
    return f"{milliseconds}ms" if milliseconds < 1_000 else f"{milliseconds / 1_000:.3g}s"
