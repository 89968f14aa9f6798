"""The bus on core NATS. The twin is `bus_memory.py`; both are held to tests/contract."""

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from libs.common.bus import Handler
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
        return answer.data

    async def subscribe(self, subject: str, handler: Handler) -> None:
        async def on_message(msg: Msg) -> None:
            reply = await handler(msg.subject, msg.data)
            if msg.reply and reply is not None:
                await self.publish(msg.reply, reply)

        await self.client.subscribe(subject, cb=on_message)
