"""The bus on core NATS. The twin is `bus_memory.py`; both are held to tests/contract."""

import asyncio

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from libs.common.bus import CONCURRENT_MAX, Handler
from libs.common.cancellation import heed
from libs.common.errors import Unavailable


class NatsBus:
    """See `bus.Bus`. Shares the connection that `log_jetstream.connect` made."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def publish(self, subject: str, data: bytes) -> None:
        try:
            await self.client.publish(subject, data)
        except (NatsError, OSError):
            return  # lost, as anything on the bus may be

    async def request(self, subject: str, data: bytes, timeout_s: float) -> bytes:
        try:
            answer = await self.client.request(subject, data, timeout=timeout_s)
        except (NatsError, TimeoutError, OSError) as error:
            raise Unavailable(f"no answer on {subject} within {timeout_s} s ({error or 'timeout'})") from error
        heed()
        return answer.data

    async def subscribe(self, subject: str, handler: Handler, concurrent: bool = False) -> None:
        async def answer(msg: Msg) -> None:
            reply = await handler(msg.subject, msg.data)
            if msg.reply and reply is not None:
                await self.publish(msg.reply, reply)

        places = asyncio.Semaphore(CONCURRENT_MAX)
        running: set[asyncio.Task[None]] = set()

        def ended(task: asyncio.Task[None]) -> None:
            running.discard(task)
            places.release()

        async def answer_beside(msg: Msg) -> None:
            await places.acquire()
            task = asyncio.create_task(answer(msg))
            running.add(task)
            task.add_done_callback(ended)

        await self.client.subscribe(subject, cb=answer_beside if concurrent else answer)
        try:
            await self.client.flush()  # the server knows of it before this returns
        except (NatsError, TimeoutError, OSError):
            return  # while disconnected: subscribed again with the connection
