"""The guard of a model's request: how often it checks its patience."""

import asyncio

from starlette.types import Message

from services.api_gateway.openai.guard import SILENT, Guard


class CountingGuard(Guard):
    """A guard that counts its checks."""

    checks = 0

    def _check_patience(self) -> None:
        self.checks += 1
        super()._check_patience()


async def _never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


async def test_patience_is_rarely_checked_during_a_send_and_ends_after_it() -> None:
    async def send(message: Message) -> None:
        await asyncio.sleep(0.5)

    async def exchange() -> CountingGuard:
        guard = CountingGuard(_never, 0.1, [])
        await asyncio.sleep(0.09)
        await guard.excluding(send)({})
        assert guard.checks <= 1 and not guard.reason
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            assert guard.reason == SILENT
        return guard

    guard = await asyncio.create_task(exchange())
    assert guard.reason == SILENT and guard.checks <= 3


async def test_the_next_try_has_the_patience_of_the_first_one() -> None:
    guard = Guard(_never, 20.0, [])
    guard.heard(0.1)
    guard.next_try()
    assert guard.patience_s == 20.0
    guard.close()
