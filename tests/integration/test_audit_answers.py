"""Audit answers a question that it cannot answer with an error, not with silence."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from libs.common import subjects
from libs.common.errors import Refused, Unavailable
from libs.common.messages.usage_messages import ChargesAsk, UsageAsk
from libs.common.transport import archive
from libs.common.transport.bus import Bus
from libs.common.transport.bus_memory import MemoryBus
from services.audit import answers
from services.audit.answers import Answers
from services.audit.chain.heads import Head
from services.audit.chain.notary import Heads
from services.audit.store.store import Store
from tests.integration.audit_world import commit, tamper

AGES_NS = 1 << 62


class World:
    """An archive and its answers on a bus."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/audit.db"
        self.store = Store(self.url)
        self.store.migrate()
        charged = {"kind": "usage.charged", "job_id": "j1", "tenant": "t", "share_ms": 1}
        self.store.append([commit(1, charged, subject=subjects.QUOTA)])
        self.bus: Bus = MemoryBus()
        self.heads = Heads(folder)
        self.log_end = 1

    async def listen(self) -> None:
        async def beyond(seq: int) -> None:
            await asyncio.Event().wait()

        async def log_end() -> int:
            return self.log_end

        async def head() -> Head | None:
            return await asyncio.to_thread(self.heads.newest)

        await Answers(self.store, "c1", beyond, head, log_end).listen(self.bus)


@pytest.fixture
async def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    await made.listen()
    return made


async def commits(bus: Bus) -> object:
    return [found async for found in archive.archived(bus, 0, 1)]


QUESTIONS: dict[str, Callable[[Bus], Awaitable[object]]] = {
    "commits": commits,
    "job": lambda bus: archive.job_seqs(bus, "j1"),
    "events": lambda bus: archive.events(bus, "", 10),
    "usage": lambda bus: archive.usage(bus, UsageAsk(0, AGES_NS)),
    "charges": lambda bus: archive.charges(bus, ChargesAsk(0, AGES_NS, 10)),
}


@pytest.mark.parametrize("question", QUESTIONS)
async def test_an_archive_that_cannot_be_read_is_an_error_at_once(
    world: World, question: str, caplog: pytest.LogCaptureFixture
) -> None:
    ask = QUESTIONS[question]
    await ask(world.bus)
    tamper(world.url, "drop table commits", "drop table facts")
    async with asyncio.timeout(archive.ANSWER_S / 2):
        with pytest.raises(Unavailable, match="audit cannot read its archive"):
            await ask(world.bus)
    assert f"a question on {subjects.ask_audit(question)} has no answer: " in caplog.text


async def test_a_question_that_cannot_be_read_is_an_error_at_once(world: World) -> None:
    with pytest.raises(Unavailable, match="the same version"):
        await world.bus.request(subjects.ask_audit("commits"), b"\xc1", archive.ANSWER_S)


@pytest.mark.parametrize("question", ["usage", "charges"])
async def test_a_time_that_takes_too_long_is_an_error_with_advice(
    world: World, question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "READ_S", -1.0)
    with pytest.raises(Unavailable, match="ask for a shorter time"):
        await QUESTIONS[question](world.bus)


async def test_heads_that_cannot_be_read_are_an_error_that_says_so(world: World) -> None:
    assert await archive.head(world.bus) == b""
    world.heads.folder.mkdir()
    (world.heads.folder / "2026-01.ndjson").write_bytes(b"damaged\n")
    with pytest.raises(Unavailable, match="the signed heads cannot be read: see the log of"):
        await archive.head(world.bus)


@pytest.mark.parametrize("after", ["9", "9-0", "9-0-3"])
async def test_a_position_beyond_the_log_is_refused(world: World, after: str) -> None:
    with pytest.raises(Refused, match="the log ends at commit 1, before 9: it was probably"):
        await archive.events(world.bus, after, 10)


async def test_a_position_that_only_the_log_has_reached_waits_for_the_archive(
    world: World,
) -> None:
    world.log_end = 9
    assert (await archive.events(world.bus, "9", 10)).events == []
