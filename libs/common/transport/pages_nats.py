"""The store of quota's rates: keys `rates.<number>` of the bucket LEADER.

The twin is `pages.MemoryPages`; tests/contract/test_pages.py runs one suite over both.
"""

from typing import Final

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.errors import APIError, NotFoundError

from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.process.cancellation import heed
from libs.common.transport.connection_nats import ASK_TIMEOUT_S
from libs.common.transport.log_jetstream import WRONG_SEQUENCE
from libs.common.transport.pages import Overtaken

STREAM: Final = f"KV_{subjects.LEADER_BUCKET}"


class NatsPages:
    """See `pages.PageStore`."""

    def __init__(self, client: Client) -> None:
        self.js = client.jetstream(timeout=ASK_TIMEOUT_S)

    async def get(self, number: int) -> tuple[bytes, int]:
        try:
            message = await self.js.get_last_msg(STREAM, subjects.rates(str(number)))
        except NotFoundError:
            return b"", 0
        except (NatsError, TimeoutError, OSError) as error:
            raise Unavailable(f"the rates cannot be read ({error or 'timeout'})") from error
        heed()
        return message.data or b"", message.seq or 0

    async def put(self, number: int, data: bytes, revision: int) -> int:
        headers = {"Nats-Expected-Last-Subject-Sequence": str(revision)}
        try:
            ack = await self.js.publish(
                subjects.rates(str(number)), data, timeout=ASK_TIMEOUT_S, headers=headers
            )
        except APIError as error:
            if error.err_code in WRONG_SEQUENCE:
                raise Overtaken(str(error.description)) from error
            raise Unavailable(f"the rates were not stored ({error})") from error
        except (NatsError, TimeoutError, OSError) as error:
            raise Unavailable(f"the rates were not stored ({error or 'timeout'})") from error
        heed()
        return int(ack.seq)
