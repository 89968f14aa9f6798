"""The bus on core NATS. The twin is `bus_memory.py`; tests/contract runs one suite over both."""

import asyncio
import logging
from typing import Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from libs.common.errors import NoListener, Unavailable
from libs.common.process.cancellation import heed
from libs.common.spans import recording
from libs.common.transport import bus_spans
from libs.common.transport.bus import CONCURRENT_MAX, Handler, RequestFailed, too_large

# The header that marks an answer of a NATS service as an error. Its value is the reason.
ERROR_HEADER: Final = "Nats-Service-Error"

logger = logging.getLogger(__name__)


class NatsBus:
    """A bus over core NATS; see `bus.Bus`.

    Shares the connection that `connection_nats.connect` made.
    """

    def __init__(self, client: Client) -> None:
        self.client = client

    async def publish(self, subject: str, data: bytes) -> None:
        if not self._refused(subject, data):
            await self._send(subject, data)

    async def _send(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> None:
        try:
            await self.client.publish(subject, data, headers=headers)
        except (NatsError, OSError):
            return  # lost, as anything on the bus may be

    def _refused(self, subject: str, data: bytes) -> str:
        """Log and return why the server would refuse the message; empty if it would accept it."""
        if len(data) <= self.client.max_payload:
            return ""
        why = too_large(subject, len(data), self.client.max_payload)
        logger.error(why)
        return why

    async def request(self, subject: str, data: bytes, timeout_s: float) -> bytes:
        if why := self._refused(subject, data):
            raise Unavailable(why)
        try:
            answer = await self.client.request(
                subject, data, timeout=timeout_s, headers=bus_spans.headers()
            )
        except NoRespondersError as error:
            raise NoListener(f"no service listens on {subject}: check that it runs") from error
        except (NatsError, TimeoutError, OSError) as error:
            raise Unavailable(
                f"no answer on {subject} within {timeout_s} s ({error or 'timeout'})"
            ) from error
        heed()
        if answer.headers and ERROR_HEADER in answer.headers:
            raise Unavailable(answer.headers[ERROR_HEADER])
        return answer.data

    async def subscribe(
        self,
        subject: str,
        handler: Handler,
        concurrent: bool = False,
        queue: str = "",
        places: int = CONCURRENT_MAX,
    ) -> None:
        async def answer(msg: Msg) -> None:
            try:
                if msg.headers is not None and recording.active is not None:
                    reply = await bus_spans.answered(handler, msg.subject, msg.data, msg.headers)
                else:
                    reply = await handler(msg.subject, msg.data)
            except RequestFailed as failed:
                if msg.reply:
                    await self._send(msg.reply, b"", {ERROR_HEADER: failed.text})
                return
            if msg.reply and reply is not None:
                why = self._refused(f"the answer to {msg.subject}", reply)
                await self._send(
                    msg.reply, b"" if why else reply, {ERROR_HEADER: why} if why else None
                )

        free = asyncio.Semaphore(places)
        running: set[asyncio.Task[None]] = set()

        def ended(task: asyncio.Task[None]) -> None:
            running.discard(task)
            free.release()

        async def answer_beside(msg: Msg) -> None:
            await free.acquire()
            task = asyncio.create_task(answer(msg))
            running.add(task)
            task.add_done_callback(ended)

        await self.client.subscribe(
            subject, queue=queue, cb=answer_beside if concurrent else answer
        )
        try:  # the server knows of it before this returns
            # nats-py may send the PING before waiting data: after its answer that data is written.
            await self.client.flush()
            await self.client.flush()
        except (NatsError, TimeoutError, OSError):
            pass  # disconnected: nats-py subscribes again when it reconnects
        heed()
