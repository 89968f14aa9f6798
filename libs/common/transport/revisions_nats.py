"""The bucket NOTIFY: positions of notifications and the lease of the gateway that sends them.

A key-value bucket on JetStream, created by its first use. Each write names the revision that it
replaces, so of two writers one is refused. Test: tests/contract/test_revisions.py.
"""

from typing import Final

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import KeyValueConfig, StorageType
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError

from libs.common import subjects
from libs.common.errors import Fenced, Unavailable
from libs.common.process.cancellation import heed
from libs.common.transport.connection_nats import ASK_TIMEOUT_S
from libs.common.transport.log_jetstream import WRONG_SEQUENCE
from libs.common.transport.revisions import NOTHING, Kept


class KvRevisions:
    """The bucket on NATS; see `revisions.Revisions`."""

    def __init__(self, client: Client, replicas: int) -> None:
        self.js = client.jetstream(timeout=ASK_TIMEOUT_S)
        self.stream: Final = f"KV_{subjects.NOTIFY_BUCKET}"
        self.config = KeyValueConfig(
            subjects.NOTIFY_BUCKET, history=1, storage=StorageType.FILE, replicas=replicas
        )

    async def get(self, key: str) -> Kept:
        """Return the value of a key. Raises Unavailable."""
        try:
            message = await self.js.get_last_msg(self.stream, self._subject(key))
        except NotFoundError:
            return NOTHING
        except (NatsError, TimeoutError, OSError) as error:
            raise Unavailable(f"{self.stream} did not give {key} ({error or 'timeout'})") from error
        heed()
        return Kept(message.data or b"", message.seq or 0)

    async def put(self, key: str, data: bytes, revision: int) -> int:
        """Replace the value of this revision. Raises Fenced, Unavailable."""
        try:
            try:
                stored = await self._publish(key, data, revision)
            except NoStreamResponseError:
                await self.js.create_key_value(self.config)
                stored = await self._publish(key, data, revision)
        except APIError as error:
            if error.err_code in WRONG_SEQUENCE:
                raise Fenced(f"{key} was written by another process: read it again") from error
            raise Unavailable(f"{self.stream} did not take {key} ({error})") from error
        except (NatsError, TimeoutError, OSError) as error:
            raise Unavailable(f"{self.stream} did not take {key} ({error or 'timeout'})") from error
        heed()
        return stored

    async def _publish(self, key: str, data: bytes, revision: int) -> int:
        headers = {"Nats-Expected-Last-Subject-Sequence": str(revision)}
        ack = await self.js.publish(
            self._subject(key), data, timeout=ASK_TIMEOUT_S, headers=headers
        )
        return int(ack.seq)

    def _subject(self, key: str) -> str:
        return f"$KV.{subjects.NOTIFY_BUCKET}.{key}"
