"""Sends one message: an HTTP request to a checked and pinned address, or a mail.

Errors name the host and the status, never the path, the body or the answer: they are shown to the
tenant, which must not read foreign servers through the gateway. Tests:
tests/integration/test_notify_sending.py.
"""

import asyncio
import socket
import ssl
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from libs.common.errors import Refused, Unavailable
from libs.common.folds.notification_fold import destination_key
from libs.common.settings.settings import Settings
from services.api_gateway.notify import addresses, messages
from services.api_gateway.notify.body import MAIL, SLACK, Sealed
from services.api_gateway.notify.mailing import Mailer
from services.api_gateway.notify.messages import Notice
from services.api_gateway.notify.trust import tls_context

# The whole time of one try, with the resolution of the name.
SEND_S: Final = 10.0
RESOLVERS: Final = 16
RESOLVERS_OF_TENANT: Final = 2
ACCEPTED: Final = range(200, 300)
JSON: Final = "application/json"


class CheckedResolver(AbstractResolver):
    """Resolves a name and refuses it unless all of its addresses are allowed.

    The connection uses exactly the addresses that were checked, so a name that changes between
    check and use gains nothing.
    """

    def __init__(
        self,
        allowed: tuple[addresses.Network, ...],
        only_listed: bool,
        threads: ThreadPoolExecutor,
        turn: asyncio.Semaphore,
    ) -> None:
        self.allowed = allowed
        self.only_listed = only_listed
        self.threads = threads
        self.turn = turn

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the checked addresses. Raises Refused, and OSError for an unknown name.

        A look-up goes on in its thread when the try's time is over, and keeps its turn until then.
        """
        await self.turn.acquire()
        loop = asyncio.get_running_loop()
        looking_up = self.threads.submit(_resolved, host, port)
        looking_up.add_done_callback(lambda _: _soon(loop, self.turn.release))
        found = await asyncio.wrap_future(looking_up)
        for _, address in found:
            self.check(address, host)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=kind,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for kind, address in found
        ]

    def check(self, address: str, host: str) -> None:
        """Raise Refused unless the address is allowed."""
        judge = addresses.is_listed if self.only_listed else addresses.is_allowed
        if not judge(address, self.allowed):
            plain = " without TLS" if self.only_listed else ""
            raise Refused(
                f"{host} has an address to which notifications may not go{plain}: an operator "
                "can allow its network with MUSTER_NOTIFY_NETWORKS"
            )

    async def close(self) -> None:
        """Do nothing: the threads are shared."""


def _soon(loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
    """Call it in the loop, from any thread. A loop that has ended needs no call."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(act)


def _resolved(host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
    rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(row[0], str(row[4][0])) for row in rows]


class Sender:
    """Sends messages with the settings of one gateway."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.allowed = addresses.networks(settings.notify_networks)
        self._resolving = ThreadPoolExecutor(RESOLVERS, "notify-names")
        self._mailer = Mailer(settings)
        self._turns: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(RESOLVERS_OF_TENANT)
        )
        self._tls: ssl.SSLContext | None = None

    async def send(
        self,
        tenant: str,
        name: str,
        form: str,
        sealed: Sealed,
        notice: Notice,
        at_s: int,
        all_mail: bool,
    ) -> None:
        """Send a notice to a destination once.

        Raises Refused or Unavailable with a text for the tenant.
        """
        try:
            async with asyncio.timeout(SEND_S):
                if form == MAIL:
                    await self._mail(
                        destination_key(tenant, name), sealed.address, notice, all_mail
                    )
                else:
                    await self._post(tenant, form, sealed, notice, at_s)
        except TimeoutError:
            raise Unavailable(f"no answer within {SEND_S:.0f} s") from None

    async def _post(
        self, tenant: str, form: str, sealed: Sealed, notice: Notice, at_s: int
    ) -> None:
        target = addresses.target_of(sealed.address)
        resolver = CheckedResolver(
            allowed=self.allowed,
            only_listed=target.scheme == "http",
            threads=self._resolving,
            turn=self._turns[tenant],
        )
        # aiohttp asks no resolver for a literal address.
        if addresses.is_literal(target.host):
            resolver.check(target.host, target.host)
        if form == SLACK:
            body, headers = messages.slack_body(notice), {}
        else:
            body = messages.webhook_body(notice)
            headers = messages.signature_headers(notice.id, at_s, body, sealed.key)
        connector = aiohttp.TCPConnector(
            resolver=resolver, use_dns_cache=False, force_close=True, ssl=self._context()
        )
        async with aiohttp.ClientSession(connector=connector, trust_env=False) as session:
            await _posted(session, sealed.address, body, headers)

    async def _mail(self, key: str, address: str, notice: Notice, all_mail: bool) -> None:
        settings = self.settings
        if not settings.smtp_host:
            raise Refused("this cluster sends no mail: an operator sets MUSTER_SMTP_HOST")
        if not all_mail and not addresses.domain_is_allowed(address, settings.notify_mail_domains):
            raise Refused(
                "this cluster sends no mail to this domain: an operator can allow it with "
                "MUSTER_NOTIFY_MAIL_DOMAINS"
            )
        message = messages.mail(notice, settings.smtp_from, address)
        await self._mailer.send(key, message, time.monotonic() + SEND_S)

    def _context(self) -> ssl.SSLContext:
        """Return the context of webhooks. Raises Unavailable; then it is made at the next try."""
        if self._tls is None:
            self._tls = tls_context(self.settings)
        return self._tls

    def close(self) -> None:
        """Stop the threads."""
        self._resolving.shutdown(wait=False, cancel_futures=True)
        self._mailer.close()


async def _posted(
    session: aiohttp.ClientSession, url: str, body: bytes, headers: dict[str, str]
) -> None:
    """Send the request. Raises Unavailable unless the answer is 2xx; its body is not read."""
    all_headers = {"content-type": JSON, "user-agent": "muster-notify", **headers}
    try:
        async with session.post(
            url, data=body, headers=all_headers, allow_redirects=False
        ) as answer:
            status = answer.status
    except aiohttp.ClientSSLError:
        raise Unavailable("TLS failed: check the receiver's certificate") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: a host's name
        raise Unavailable(f"no connection ({type(error).__name__})") from None
    if status not in ACCEPTED:
        hint = ": redirects are not followed" if status in range(300, 400) else ""
        raise Unavailable(f"the receiver answered {status}{hint}")
