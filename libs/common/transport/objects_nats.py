"""The bucket of snapshots on JetStream, and the fill level of the log's stream.

The twin of the bucket is `snapshot_store.MemorySnapshots`.
"""

from typing import Final

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import ObjectStoreConfig
from nats.js.errors import (
    BucketNotFoundError,
    NotFoundError,
    ObjectDeletedError,
    ObjectNotFoundError,
)
from nats.js.object_store import ObjectStore

from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.process.cancellation import heed

ASK_TIMEOUT_S: Final = 5.0


class NatsObjects:
    """Named objects in one bucket, which the first put creates. All methods raise Unavailable."""

    def __init__(
        self, client: Client, replicas: int = 1, bucket: str = subjects.SNAPSHOT_BUCKET
    ) -> None:
        self.js = client.jetstream(timeout=ASK_TIMEOUT_S)
        self.bucket = bucket
        self.replicas = replicas

    async def put(self, name: str, data: bytes) -> None:
        try:
            await (await self._made()).put(name, data)
        except (NatsError, TimeoutError, OSError) as error:
            raise _unavailable(self.bucket, name, error) from error

    async def get(self, name: str) -> bytes | None:
        try:
            store = await self.js.object_store(self.bucket)
            return (await store.get(name)).data
        except (BucketNotFoundError, NotFoundError, ObjectNotFoundError, ObjectDeletedError):
            return None
        except (NatsError, TimeoutError, OSError) as error:
            raise _unavailable(self.bucket, name, error) from error

    async def delete(self, name: str) -> None:
        try:
            await (await self.js.object_store(self.bucket)).delete(name)
        except (BucketNotFoundError, NotFoundError, ObjectNotFoundError, ObjectDeletedError):
            return
        except (NatsError, TimeoutError, OSError) as error:
            raise _unavailable(self.bucket, name, error) from error

    async def _made(self) -> ObjectStore:
        try:
            return await self.js.object_store(self.bucket)
        except (BucketNotFoundError, NotFoundError):
            return await self.js.create_object_store(
                self.bucket, ObjectStoreConfig(replicas=self.replicas)
            )


async def filled_part(client: Client) -> float:
    """Return the fill level of the log, 0.0 to 1.0; 0.0 for a stream without a bound.

    Raises Unavailable.
    """
    try:
        info = await client.jetstream(timeout=ASK_TIMEOUT_S).stream_info(subjects.STREAM)
    except (NatsError, TimeoutError, OSError) as error:
        raise Unavailable(
            f"the log does not answer ({error or 'timeout'}): is its leader up?"
        ) from error
    heed()
    bound = info.config.max_bytes or 0
    return info.state.bytes / bound if bound > 0 else 0.0


def _unavailable(bucket: str, name: str, error: BaseException) -> Unavailable:
    return Unavailable(
        f"bucket {bucket} did not answer for {name} ({error or 'timeout'}): is JetStream up?"
    )
