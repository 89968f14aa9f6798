"""Enforces a tenant's requests and tokens per minute: spends what the tenant's purse holds, and
asks quota for more.

One ledger, quota's, over all gateways; this gateway spends slices of it that are its own, so no
concurrency can overrun a limit. Without quota's word a limited tenant is refused, and only such a
one. Held by tests/integration/test_rate_limits.py.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.messages import rate_messages
from libs.common.messages.rate_messages import SliceReturn
from libs.common.model import TenantId
from libs.common.process.clock import Clock
from libs.common.state.cluster import Cluster
from libs.common.transport.bus import Bus
from services.api_gateway.access.roles import Principal
from services.api_gateway.openai.errors import ApiError, RateLimited
from services.api_gateway.openai.metering import Grant
from services.api_gateway.openai.purse import Need, Purse

# After a question without an answer, requests are refused for this long without another question.
SILENT_NS: Final = 1_000_000_000
RETRY_S: Final = 1


class Account:
    """A tenant's purse, and the lock under which one request at a time asks for more."""

    def __init__(self, tenant: TenantId) -> None:
        self.purse = Purse(tenant)
        self.lock = asyncio.Lock()
        self.silent_until_ns = 0


class Limited:
    """See `metering.Meter`."""

    def __init__(
        self, cluster: Callable[[], Cluster], bus: Bus, clock: Clock, answer_s: float
    ) -> None:
        self.cluster = cluster
        self.bus = bus
        self.clock = clock
        self.answer_s = answer_s
        self.accounts: dict[TenantId, Account] = {}
        self._sending: set[asyncio.Task[None]] = set()

    def counts(self, principal: Principal) -> bool:
        tenant = self.cluster().tenants.get(TenantId(principal.tenant))
        return tenant is not None and (
            tenant.tokens_per_minute > 0 or tenant.requests_per_minute > 0
        )

    async def reserve(self, principal: Principal, model: str, tokens: int) -> Grant:
        tenant = self.cluster().tenants[TenantId(principal.tenant)]
        account = self.accounts.get(tenant.tenant)
        if account is None:  # one for each tenant that has a limit, which the fold bounds
            account = self.accounts[tenant.tenant] = Account(tenant.tenant)
        if 0 < tenant.tokens_per_minute < tokens:
            raise _never(tenant.tenant, tenant.tokens_per_minute, tokens)
        need = Need(
            1 if tenant.requests_per_minute else 0, tokens if tenant.tokens_per_minute else 0
        )
        if not account.purse.take(need, self.clock.boot_ns()):
            async with account.lock:
                await self._take_more(account, need)
        purse = account.purse
        return Grant(
            principal.tenant, model, need.tokens, purse.headers(self.clock.boot_ns()), purse.window
        )

    async def _take_more(self, account: Account, need: Need) -> None:
        """Under the lock: another may have filled the purse meanwhile.

        Raises RateLimited, ApiError 503.

        What quota gives covers the need, unless a minute ended on the way: then the next one is
        asked.
        """
        now_ns, purse = self.clock.boot_ns(), account.purse
        if purse.take(need, now_ns):
            return
        if purse.refused(need, now_ns):
            raise self._refusal(purse, need)
        if await self._ask(account, need):
            return
        if purse.last.given:
            await self._turn(purse)
            if await self._ask(account, need):
                return
        raise _silent() if purse.last.given else self._refusal(purse, need)

    async def _turn(self, purse: Purse) -> None:
        """Until the minute that quota spoke of last is over at quota too, if it is here: from its
        answer on it lasts that long at most.
        """
        if self.clock.boot_ns() >= purse.until_ns:
            await asyncio.sleep((purse.last.left_ms + 1) / 1_000)

    async def _ask(self, account: Account, need: Need) -> bool:
        """Ask quota for what is missing; whether the need was met."""
        purse, asked_ns = account.purse, self.clock.boot_ns()
        if asked_ns < account.silent_until_ns:
            raise _silent()
        question = rate_messages.encode(purse.ask(need, asked_ns))
        try:
            answer = await self.bus.request(subjects.ask_quota("reserve"), question, self.answer_s)
        except Unavailable as error:
            account.silent_until_ns = self.clock.boot_ns() + SILENT_NS
            raise _silent() from error
        finally:
            purse.put_back()
        purse.put(rate_messages.decode_slice(answer), need, asked_ns)
        return purse.take(need, self.clock.boot_ns())

    def _refusal(self, purse: Purse, need: Need) -> ApiError:
        last, now_ns = purse.last, self.clock.boot_ns()
        wait_s = max(1, -(-(purse.until_ns - now_ns) // 1_000_000_000))
        if last.starting:
            text = (
                "the limits of this tenant are counted anew after a restart, from the next "
                "minute on: try again then"
            )
            return ApiError(503, text, "limits_unavailable", retry_after_s=wait_s)
        if 0 < last.tokens_limit < need.tokens:
            return _never(purse.tenant, last.tokens_limit, need.tokens)
        what, text = _spent(purse, need)
        return RateLimited(what, f"tenant {purse.tenant} {text}", wait_s, purse.headers(now_ns))

    def settle(self, grant: Grant, tokens: int | None) -> None:
        account = self.accounts[TenantId(grant.tenant)]
        used = grant.tokens if tokens is None else tokens
        back = account.purse.settle(grant.window, grant.tokens, used, self.clock.boot_ns())
        if back is not None:
            self._send(back)

    def _send(self, back: SliceReturn) -> None:
        task = asyncio.get_running_loop().create_task(
            self.bus.publish(subjects.ask_quota("return"), rate_messages.encode(back))
        )
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)


def _spent(purse: Purse, need: Need) -> tuple[str, str]:
    """Which limit refuses, and the sentence about it."""
    last = purse.last
    if purse.requests + last.requests_left < need.requests:
        return "requests", f"may send {last.requests_limit} requests a minute"
    text = f"may use {last.tokens_limit} tokens a minute"
    left = max(0, min(last.tokens_limit, purse.tokens + last.tokens_left))
    return "tokens", f"{text} and has {left} of them left, and this request may need {need.tokens}"


def _never(tenant: str, limit: int, tokens: int) -> ApiError:
    """Return the error for a request that fits into no minute, so that no client tries it again."""
    text = (
        f"tenant {tenant} may use {limit} tokens a minute, and this request alone may need "
        f"{tokens}: send less, or set a lower max_tokens"
    )
    error = ApiError(400, text, "tokens_over_limit", "max_tokens")
    error.headers.append((b"x-should-retry", b"false"))
    return error


def _silent() -> ApiError:
    text = (
        "the limits of this tenant cannot be counted, for quota does not answer: try again in a "
        "moment"
    )
    return ApiError(503, text, "limits_unavailable", retry_after_s=RETRY_S)
