"""The count of a second try is given back, however early the try ends."""

import asyncio
from types import SimpleNamespace
from typing import Any

from libs.common.model import JobId
from libs.common.state.cluster import Endpoint
from services.api_gateway.openai.hedge import Hedge, Opened

SECOND = Endpoint(JobId("m-2"), "127.0.0.1", 1)


class Tries:
    """Second tries that are always allowed."""

    def __init__(self) -> None:
        self.given_back: list[Any] = []

    def begin(self, asked: Any) -> Any:
        return SimpleNamespace(replica=SECOND)

    def withdraw(self, sent: Any) -> None:
        self.given_back.append(sent)


def hedge(tries: Tries) -> Hedge:
    async def never(replica: Endpoint) -> Opened:
        await asyncio.Event().wait()
        raise AssertionError

    guard = SimpleNamespace(loop=asyncio.get_running_loop(), task=asyncio.current_task())
    parts: dict[str, Any] = {"call": SimpleNamespace(status=0), "asked": None, "guard": guard}
    return Hedge(queue=SimpleNamespace(tries=tries), post=never, **parts)  # type: ignore[arg-type]


async def test_a_second_try_that_ends_before_its_first_step_gives_its_count_back() -> None:
    tries = Tries()
    second = hedge(tries)
    second._begin()
    second.close()
    await asyncio.sleep(0.01)
    assert tries.given_back == [second.sent]


async def test_a_second_try_that_ends_while_it_waits_gives_its_count_back_once() -> None:
    tries = Tries()
    second = hedge(tries)
    second._begin()
    await asyncio.sleep(0.01)
    second.close()
    second.close()
    await asyncio.sleep(0.01)
    assert tries.given_back == [second.sent]
