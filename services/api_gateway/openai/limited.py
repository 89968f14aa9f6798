"""Enforces requests and tokens per minute of tenants, keys and models: spends the purse of each
account that a request counts in, and asks quota for more.

A request takes from all its accounts or from none. Quota keeps one ledger for all gateways. Each
gateway spends slices of it that belong to this gateway alone, so concurrency cannot exceed a limit.
If quota does not answer, requests with a limit are refused, and only those. Tests:
tests/integration/test_rate_limits.py.
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
from libs.common.state import accounts
from libs.common.state.cluster import Cluster
from libs.common.state.rate_limits import KEY, MODEL
from libs.common.transport.bus import Bus
from services.api_gateway.access.roles import Principal
from services.api_gateway.openai.errors import ApiError, RateLimited
from services.api_gateway.openai.metering import Grant, Part
from services.api_gateway.openai.purse import Need, Purse, headers_of

# If quota does not answer, the gateway refuses requests for this long before it asks again.
SILENT_NS: Final = 1_000_000_000
RETRY_S: Final = 1
# Accounts with a purse. More than there can be tenants and keys, but names of both come and go.
ACCOUNTS_MAX: Final = 100_000


class Account:
    """An account's purse, and the lock under which one request at a time asks for more."""

    def __init__(self, tenant: TenantId, account: str) -> None:
        self.purse = Purse(tenant, account)
        self.lock = asyncio.Lock()
        self.silent_until_ns = 0


class Limited:
    """The meter of tenants, keys and models with limits; see `metering.Meter`."""

    def __init__(
        self, cluster: Callable[[], Cluster], bus: Bus, clock: Clock, answer_s: float
    ) -> None:
        self.cluster = cluster
        self.bus = bus
        self.clock = clock
        self.answer_s = answer_s
        self.accounts: dict[tuple[str, str], Account] = {}
        self._sending: set[asyncio.Task[None]] = set()

    def counts(self, principal: Principal, model: str) -> bool:
        return accounts.has_limits(
            self.cluster(), TenantId(principal.tenant), principal.key_id, model
        )

    async def reserve(self, principal: Principal, model: str, tokens: int) -> Grant:
        tenant = TenantId(principal.tenant)
        limits = accounts.of_request(self.cluster(), tenant, principal.key_id, model)
        for name, found in limits:
            if 0 < found.tokens_per_minute < tokens:
                raise _larger_than_limit(subject(tenant, name), found.tokens_per_minute, tokens)
        taken: list[tuple[Purse, Part]] = []
        try:
            for name, found in limits:
                account = self._account(tenant, name)
                need = Need(
                    1 if found.requests_per_minute else 0, tokens if found.tokens_per_minute else 0
                )
                if not account.purse.take(need, self.clock.boot_ns()):
                    await self._fetch(account, need)
                taken.append((account.purse, _part(account.purse, need)))
        finally:
            now_ns = self.clock.boot_ns()
            if len(taken) < len(limits):  # another account refused it
                for purse, part in taken:
                    purse.give_back(part.window, Need(part.requests, part.tokens), now_ns)
        parts = tuple(part for _, part in taken)
        if len(taken) == 1:
            headers = taken[0][0].headers(now_ns)
        else:
            headers = headers_of(each for purse, _ in taken for each in purse.shown(now_ns))
        most = max((part.tokens for part in parts), default=0)
        return Grant(principal.tenant, model, most, headers, parts)

    def _account(self, tenant: TenantId, name: str) -> Account:
        found = self.accounts.get((tenant, name))
        if found is None:
            if len(self.accounts) >= ACCOUNTS_MAX:
                del self.accounts[next(iter(self.accounts))]  # the oldest: its slice is lost
            found = self.accounts[tenant, name] = Account(tenant, name)
        return found

    async def _fetch(self, account: Account, need: Need) -> None:
        """Take a part that the purse lacks, one request at a time. Raises as `reserve`."""
        async with account.lock:
            await self._take_more(account, need)

    async def _take_more(self, account: Account, need: Need) -> None:
        """Take the need from the purse, and ask quota if the purse holds too little.

        The caller holds the lock; another request may have filled the purse meanwhile. A slice from
        quota covers the need, unless its minute ended on the way. Then this method asks once more,
        in the next minute.

        Raises RateLimited, or ApiError 503 if quota does not answer.
        """
        now_ns, purse = self.clock.boot_ns(), account.purse
        if purse.take(need, now_ns):
            return
        if purse.refused(need, now_ns):
            raise self._refusal(purse, need)
        if await self._ask(account, need):
            return
        if purse.last.given:
            await self._await_next_minute(purse)
            if await self._ask(account, need):
                return
        raise _quota_unavailable(purse) if purse.last.given else self._refusal(purse, need)

    async def _await_next_minute(self, purse: Purse) -> None:
        """Sleep until the minute is over at quota too, if it is over here: `left_ms` after its
        answer at the latest.
        """
        if self.clock.boot_ns() >= purse.until_ns:
            await asyncio.sleep((purse.last.left_ms + 1) / 1_000)

    async def _ask(self, account: Account, need: Need) -> bool:
        """Ask quota for what the purse lacks. Return whether the purse then covered the need."""
        purse, asked_ns = account.purse, self.clock.boot_ns()
        if asked_ns < account.silent_until_ns:
            raise _quota_unavailable(purse)
        question = rate_messages.encode(purse.ask(need, asked_ns))
        try:
            answer = await self.bus.request(subjects.ask_quota("reserve"), question, self.answer_s)
        except Unavailable as error:
            account.silent_until_ns = self.clock.boot_ns() + SILENT_NS
            raise _quota_unavailable(purse) from error
        finally:
            purse.put_back()
        purse.put(rate_messages.decode_slice(answer), need, asked_ns)
        return purse.take(need, self.clock.boot_ns())

    def _refusal(self, purse: Purse, need: Need) -> ApiError:
        last, now_ns = purse.last, self.clock.boot_ns()
        whose = subject(purse.tenant, purse.account)
        wait_s = max(1, -(-(purse.until_ns - now_ns) // 1_000_000_000))
        if last.starting:
            text = (
                f"the limits of {whose} cannot be counted until the next minute, because quota was "
                "restarted: try again then"
            )
            return ApiError(503, text, "limits_unavailable", retry_after_s=wait_s)
        if 0 < last.tokens_limit < need.tokens:
            return _larger_than_limit(whose, last.tokens_limit, need.tokens)
        what, text = _exhausted(purse, need)
        return RateLimited(what, f"{whose} {text}", wait_s, purse.headers(now_ns))

    def settle(self, grant: Grant, tokens: int | None) -> None:
        now_ns = self.clock.boot_ns()
        for part in grant.parts:
            account = self.accounts.get(part[:2])
            if account is None:
                continue
            used = part.tokens if tokens is None else tokens
            back = account.purse.settle(part.window, part.tokens, used, now_ns)
            if back is not None:
                self._send(back)

    def _send(self, back: SliceReturn) -> None:
        task = asyncio.get_running_loop().create_task(
            self.bus.publish(subjects.ask_quota("return"), rate_messages.encode(back))
        )
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)


def _part(purse: Purse, need: Need) -> Part:
    return Part(purse.tenant, purse.account, need.requests, need.tokens, purse.window)


def subject(tenant: str, account: str) -> str:
    """Return the account in the words of an error."""
    kind, _, name = account.partition(":")
    if kind == KEY:
        return f"key {name}"
    return f"tenant {tenant} at model {name}" if kind == MODEL else f"tenant {tenant}"


def _exhausted(purse: Purse, need: Need) -> tuple[str, str]:
    """Return the limit that is exhausted, requests or tokens, and a sentence about it."""
    last = purse.last
    if purse.requests + last.requests_left < need.requests:
        return "requests", f"may send {last.requests_limit} requests a minute, and has sent them"
    text = f"may use {last.tokens_limit} tokens a minute"
    left = max(0, min(last.tokens_limit, purse.tokens + last.tokens_left))
    return "tokens", f"{text} and has {left} left, but this request may need {need.tokens}"


def _larger_than_limit(whose: str, limit: int, tokens: int) -> ApiError:
    """Return the error for a request that exceeds a whole minute's limit. Its header tells clients
    not to retry.
    """
    text = (
        f"{whose} may use {limit} tokens a minute, and this request alone may need "
        f"{tokens}: send less, or set a lower max_tokens"
    )
    error = ApiError(400, text, "tokens_over_limit", "max_tokens")
    error.headers.append((b"x-should-retry", b"false"))
    return error


def _quota_unavailable(purse: Purse) -> ApiError:
    text = (
        f"the limits of {subject(purse.tenant, purse.account)} cannot be counted, because the "
        "quota service does not answer: try again in a moment"
    )
    return ApiError(503, text, "limits_unavailable", retry_after_s=RETRY_S)
