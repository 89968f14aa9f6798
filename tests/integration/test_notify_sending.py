"""One try to send a message: what goes on in threads after its time, and faults of settings."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from email.message import EmailMessage
from pathlib import Path

import pytest

from libs.common.errors import Unavailable
from libs.common.settings.settings import Settings
from services.api_gateway.notify import mailing, sending
from services.api_gateway.notify.mailing import Mailer
from services.api_gateway.notify.sending import CheckedResolver
from services.api_gateway.notify.trust import tls_context
from tests.integration.notify_world import add, notify_world, receiver, until

LATER_S = 1e9


def mail(name: str, to: str = "ann@example.org") -> EmailMessage:
    message = EmailMessage()
    message["Message-ID"], message["To"] = f"<{name}@x>", to
    return message


class Relay:
    """Stands in for `send_mail`: each mail takes until `go` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.go = threading.Event()
        monkeypatch.setattr(mailing, "send_mail", self.take)

    def take(self, settings: Settings, message: EmailMessage, until_s: float) -> None:
        name = f"{message['Message-ID']} {message['To']}"
        self.begun.append(name)
        self.go.wait(10)
        self.ended.append(name)


async def late(mailer: Mailer, message: EmailMessage) -> None:
    """Try to send a mail; the time of the try is over before the relay answers."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await mailer.send("red.d", message, LATER_S)


async def test_no_mail_comes_after_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    relay, mailer = Relay(monkeypatch), Mailer(Settings())
    await late(mailer, mail("1"))
    await late(mailer, mail("2"))
    assert relay.begun == ["<1@x> ann@example.org"]
    await asyncio.gather(mailer.send("red.d", mail("2"), LATER_S), asyncio.to_thread(relay.go.set))
    assert relay.ended == ["<1@x> ann@example.org", "<2@x> ann@example.org"]
    mailer.close()


async def test_a_mail_whose_try_ended_late_and_well_is_not_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    relay, mailer = Relay(monkeypatch), Mailer(Settings())
    await late(mailer, mail("1"))
    relay.go.set()
    await until(lambda: len(relay.ended) == 1)
    await mailer.send("red.d", mail("1"), LATER_S)
    assert len(relay.begun) == 1
    await mailer.send("red.d", mail("1", "bob@example.org"), LATER_S)
    assert len(relay.begun) == 2
    mailer.close()


def test_nothing_is_given_to_the_relay_after_the_time_of_the_try() -> None:
    with pytest.raises(Unavailable, match="in time"):
        mailing.send_mail(Settings(smtp_host="localhost"), mail("1"), 0.0)


async def test_no_step_of_a_mail_begins_after_the_time_of_the_try() -> None:
    heard: list[bytes] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 ready\r\n")
        while line := await reader.readline():
            heard.append(line[:4].upper())
            await asyncio.sleep(1.2 if heard[-1] == b"MAIL" else 0)
            writer.write(b"250 well\r\n")
        writer.close()

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    settings = Settings(
        smtp_host="127.0.0.1", smtp_port=server.sockets[0].getsockname()[1], smtp_tls="off"
    )
    message = mail("1")
    message["From"] = "muster@example.org"
    with pytest.raises(Unavailable):
        await asyncio.to_thread(mailing.send_mail, settings, message, time.monotonic() + 1)
    await asyncio.sleep(0.5)
    server.close()
    assert b"RCPT" not in heard and b"DATA" not in heard


async def test_a_look_up_keeps_its_turn_until_its_thread_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go = threading.Event()

    def resolved(host: str, port: int) -> list[object]:
        go.wait(10)
        return []

    monkeypatch.setattr(sending, "_resolved", resolved)
    turn, threads = asyncio.Semaphore(1), ThreadPoolExecutor(2)
    resolver = CheckedResolver((), only_listed=False, threads=threads, turn=turn)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await resolver.resolve("h.example", 443)
    assert turn.locked()
    go.set()
    await until(lambda: not turn.locked())
    assert await resolver.resolve("h.example", 443) == []
    await until(lambda: not turn.locked())
    threads.shutdown()


@pytest.mark.parametrize("content", [None, "", "no certificate", "\u00e9"])
def test_authorities_that_cannot_be_used_are_a_fault_of_the_world(
    tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "authorities.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(Unavailable, match="MUSTER_NOTIFY_CA_FILE"):
        tls_context(Settings(notify_ca_file=str(path)))


async def test_a_delivery_counts_unusable_authorities_as_failed_tries(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    async with receiver() as hook, notify_world(tmp_path, notify_ca_file=missing) as world:
        await world.writers.begin_term()
        await world.writers.register("n1", 8)
        await add(world, "hook", webhook=hook.url)
        await world.run_to("completed")
        deliveries = world.gateway.notifier.deliveries
        await until(lambda: "default.hook" in deliveries)
        delivery = deliveries["default.hook"]
        await until(lambda: delivery.progress.failures >= 1)
        assert "MUSTER_NOTIFY_CA_FILE" in delivery.progress.error
        assert hook.tries == 0
