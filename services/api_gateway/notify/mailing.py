"""Hands mails to the relay of the settings, in threads: one at a time for each destination.

Tests: tests/integration/test_notify_sending.py.
"""

import asyncio
import math
import smtplib
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from email.message import EmailMessage
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from libs.common.errors import Unavailable
from libs.common.settings.settings import Settings
from services.api_gateway.notify.trust import tls_context

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# Longest wait for one step of the relay.
STEP_S: Final = 8.0
TLS: Final = "tls"
STARTTLS: Final = "starttls"
MAILERS: Final = 8
# Tries that are remembered after their time was over: as many as there may be destinations.
TRIES_KEPT: Final = 1_000


class Try(NamedTuple):
    """One try to send a mail; its thread goes on when the try's time is over."""

    mail: tuple[str, str]
    done: asyncio.Future[None]


class Mailer:
    """Sends the mails of one gateway."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._threads = ThreadPoolExecutor(MAILERS, "notify-mail")
        self._tries: dict[str, Try] = {}

    async def send(self, key: str, message: EmailMessage, until_s: float) -> None:
        """Send the mail of a destination until this time (monotonic). Raises Unavailable.

        It waits for the thread of an earlier try, so that no mail comes after a later one. If the
        earlier try has sent the same mail, it is not sent again.
        """
        mail = (str(message["Message-ID"]), str(message["To"]))
        while (last := self._tries.get(key)) is not None:
            await asyncio.wait([last.done])
            self._end(key, last)
            if last.mail == mail and not last.done.cancelled() and not last.done.exception():
                return
        loop = asyncio.get_running_loop()
        done = loop.run_in_executor(self._threads, send_mail, self.settings, message, until_s)
        done.add_done_callback(_read)
        now = self._tries[key] = Try(mail, done)
        while len(self._tries) > TRIES_KEPT:
            del self._tries[next(iter(self._tries))]
        await asyncio.shield(done)
        self._end(key, now)

    def _end(self, key: str, ended: Try) -> None:
        if self._tries.get(key) is ended:
            del self._tries[key]

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _read(done: asyncio.Future[None]) -> None:
    """Read the result, which the event loop would otherwise report as forgotten."""
    if not done.cancelled():
        done.exception()


def send_mail(settings: Settings, message: EmailMessage, until_s: float) -> None:
    """Send a mail over TLS, unless the settings say `off`. Raises Unavailable.

    Blocking: call it in a thread. Nothing is sent after `until_s` (monotonic).
    """
    try:
        _check_time(until_s)
        with _connected(settings, until_s) as relay:
            if settings.smtp_tls == STARTTLS:
                relay.starttls(context=tls_context(settings))
            if settings.smtp_user:
                password = Path(settings.smtp_password_file).read_text().strip()
                relay.login(settings.smtp_user, password)
            relay.send_message(message)
    except smtplib.SMTPResponseException as error:
        raise Unavailable(f"the mail relay refused the mail ({error.smtp_code})") from None
    except smtplib.SMTPRecipientsRefused:
        raise Unavailable("the mail relay refused the receiver") from None
    except ssl.SSLError:
        raise Unavailable("TLS with the mail relay failed: check its certificate") from None
    except (smtplib.SMTPException, OSError, ValueError) as error:
        raise Unavailable(f"the mail relay did not answer ({type(error).__name__})") from None


def _check_time(until_s: float) -> None:
    if time.monotonic() >= until_s:
        raise Unavailable("the mail relay did not answer in time")


class _Relay(smtplib.SMTP):
    """A connection on which no step begins or lasts after `until_s`."""

    until_s = math.inf

    def send(self, s: "ReadableBuffer | str") -> None:
        self._limit()
        super().send(s)

    def getreply(self) -> tuple[int, bytes]:
        self._limit()
        return super().getreply()

    def _limit(self) -> None:
        left_s = self.until_s - time.monotonic()
        if left_s <= 0:
            self.close()
            raise smtplib.SMTPServerDisconnected("the time of the try is over")
        if self.sock is not None:
            self.sock.settimeout(min(STEP_S, left_s))


class _RelayOverTls(_Relay, smtplib.SMTP_SSL):
    """The same over TLS from the beginning."""


def _connected(settings: Settings, until_s: float) -> _Relay:
    timeout_s = min(STEP_S, until_s - time.monotonic())
    host, port = settings.smtp_host, settings.smtp_port
    relay = (
        _RelayOverTls(host, port, timeout=timeout_s, context=tls_context(settings))
        if settings.smtp_tls == TLS
        else _Relay(host, port, timeout=timeout_s)
    )
    relay.until_s = until_s
    return relay
