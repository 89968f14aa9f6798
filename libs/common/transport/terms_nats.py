"""Terms of a service that writes no facts: the revisions of its key in the bucket LEADER.

Each term is written on top of the one before, so of two processes that begin together one is
refused. Audit uses it. Test: tests/contract/test_leadership.py.
"""

import asyncio
import logging
from typing import Final, NoReturn

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.errors import APIError, NotFoundError

from libs.common import subjects
from libs.common.errors import Fenced, Unavailable
from libs.common.process.cancellation import heed
from libs.common.transport.connection_nats import ASK_TIMEOUT_S
from libs.common.transport.log_jetstream import WRONG_SEQUENCE

AGAIN_S: Final = 0.5
# A leader looks this often whether its term is over.
LOOK_S: Final = 1.0
NS: Final = 1_000_000_000

logger = logging.getLogger(__name__)


class KvTerms:
    """The terms of one service."""

    def __init__(self, client: Client, service: str) -> None:
        self.js = client.jetstream(timeout=ASK_TIMEOUT_S)
        self.service = service
        self.subject = subjects.leader(service)

    async def newest(self) -> int:
        """Return the newest term; 0 if there was none. Wait while the bucket does not answer."""
        return (await self.begun())[0]

    async def begun(self) -> tuple[int, int]:
        """Return the newest term, and when it began: ns since 1970, by the server's clock.

        (0, 0) if there was none. Wait while the bucket does not answer.
        """
        while True:
            try:
                term = await self.js.get_last_msg(f"KV_{subjects.LEADER_BUCKET}", self.subject)
            except NotFoundError:
                return 0, 0
            except (NatsError, TimeoutError, OSError) as error:
                heed()
                logger.warning("the term of %s cannot be read: %s", self.service, error)
                await asyncio.sleep(AGAIN_S)
            else:
                return term.seq or 0, int(term.time.timestamp() * NS) if term.time else 0

    async def prove(self, epoch: int) -> None:
        """Return if the term `epoch` is still the newest one.

        Wait while the bucket does not answer. Raises Fenced if the term is over.
        """
        newest = await self.newest()
        if newest != epoch:
            raise Fenced(
                f"the term {epoch} of this {self.service} is over, term {newest} leads: this "
                "process ends, and follows after its next start"
            )

    async def watch(self, epoch: int) -> NoReturn:
        """Prove the term again and again, until it is over. Raises Fenced."""
        while True:
            await self.prove(epoch)
            await asyncio.sleep(LOOK_S)

    async def begin(self, after: int, instance: str) -> int:
        """Begin the term after the term `after`, and return it.

        Wait while the bucket does not answer, or does not exist yet. Raises Fenced if another
        process began one.
        """
        while True:
            try:
                return await self._begin(after, instance)
            except Unavailable as error:
                logger.warning("%s", error)
                await asyncio.sleep(AGAIN_S)

    async def _begin(self, after: int, instance: str) -> int:
        headers = {"Nats-Expected-Last-Subject-Sequence": str(after)}
        try:
            ack = await self.js.publish(
                self.subject, instance.encode(), timeout=ASK_TIMEOUT_S, headers=headers
            )
        except APIError as error:
            if error.err_code in WRONG_SEQUENCE:
                raise Fenced(f"another {self.service} began a term after {after}") from error
            raise Unavailable(f"the term of {self.service} was not stored ({error})") from error
        except (NatsError, TimeoutError, OSError) as error:
            raise Unavailable(
                f"the term of {self.service} was not stored ({error or 'timeout'})"
            ) from error
        heed()
        return int(ack.seq)
