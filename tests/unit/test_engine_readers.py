"""Threads that read how engines start: shares by tenant, and threads that wait for ever."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from services.node_agent.resident import engine_readers
from services.node_agent.resident.engine_readers import READERS, EngineReaders

WAIT_S = 10.0
SHORT_S = 0.2


class Files:
    """Files on a file system that answers only after `answers` is set."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.readers = EngineReaders()

    def begin(self, tenant: str, count: int) -> "list[asyncio.Task[bool]]":
        """Let the tenant begin so many readings."""
        return [
            asyncio.ensure_future(self.readers.read(tenant, lambda: self.answers.wait(WAIT_S)))
            for _ in range(count)
        ]


@pytest.fixture
async def files() -> AsyncIterator[Files]:
    made = Files()
    yield made
    made.answers.set()
    made.readers.close()


async def test_a_tenant_whose_files_do_not_answer_leaves_threads_to_others(files: Files) -> None:
    stuck = files.begin("stuck", 2 * READERS)
    await asyncio.sleep(0)
    held = files.readers.share.held
    assert 0 < held < READERS
    assert await files.readers.read("other", lambda: "key") == "key"
    files.answers.set()
    assert await asyncio.gather(*stuck) == [True] * 2 * READERS
    assert files.readers.share.held == 0


async def test_a_thread_that_waits_too_long_keeps_its_place_until_it_ends(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_readers, "READ_S", SHORT_S)
    stuck = files.begin("stuck", 2 * READERS)
    errors = [str(error) for error in await asyncio.gather(*stuck, return_exceptions=True)]
    held = files.readers.share.held
    late = f"its engine and configuration could not be read within {SHORT_S:g} s"
    assert errors[:held] == [late] * held
    assert all("no thread was free" in error for error in errors[held:])
    with pytest.raises(TimeoutError, match="check the file systems"):
        await files.readers.read("stuck", lambda: "key")
    files.answers.set()
    while files.readers.share.held:
        await asyncio.sleep(0)
    assert await files.readers.read("stuck", lambda: "key") == "key"


async def test_a_reading_whose_thread_cannot_be_started_holds_no_place(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="new thread"):
            await files.readers.read("a", lambda: "key")
    assert files.readers.share.held == 0


async def test_a_reading_that_fails_gives_its_thread_back(files: Files) -> None:
    def fails() -> str:
        raise PermissionError("no")

    with pytest.raises(PermissionError):
        await files.readers.read("a", fails)
    while files.readers.share.held:
        await asyncio.sleep(0)
