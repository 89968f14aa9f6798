"""Key-value buckets on JetStream: the scheduler's leadership writes, and the last bytes of ended jobs' output.

A bucket is a stream `KV_<bucket>` with subjects `$KV.<bucket>.<key>`; a plain publish with an acknowledgement is the
quorum write, a direct get the read. Only the scheduler makes buckets.
"""

import asyncio
import logging
import secrets
from typing import Final

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import KeyValueConfig, StorageType
from nats.js.errors import NotFoundError

from libs.common import subjects
from libs.common.cancellation import heed
from libs.common.errors import Unavailable
from libs.common.log_jetstream import ASK_TIMEOUT_S

# All outputs' last bytes together; the oldest keys leave by age.
OUTPUT_BUCKET_BYTES: Final = 2 << 30
OUTPUT_AGE_S: Final = 30 * 24 * 3600
CREATE_TRIES: Final = 20

logger = logging.getLogger(__name__)


async def create_buckets(client: Client, replicas: int) -> None:
    """Make LEADER, OUTPUT and SECRETS unless they are there. Raises Unavailable when no leader answers."""
    leader = KeyValueConfig(subjects.LEADER_BUCKET, history=1, storage=StorageType.FILE, replicas=replicas)
    output = KeyValueConfig(
        subjects.OUTPUT_BUCKET, history=1, ttl=OUTPUT_AGE_S, max_bytes=OUTPUT_BUCKET_BYTES, storage=StorageType.FILE, replicas=replicas
    )
    secret = KeyValueConfig(subjects.SECRET_BUCKET, history=1, storage=StorageType.FILE, replicas=replicas)
    for config in (leader, output, secret):
        await _create_bucket(client, config)


async def _create_bucket(client: Client, config: KeyValueConfig) -> None:
    js = client.jetstream(timeout=ASK_TIMEOUT_S)
    for _ in range(CREATE_TRIES):
        try:
            await js.stream_info(f"KV_{config.bucket}")
            return
        except NotFoundError:
            pass
        except (NatsError, TimeoutError, OSError):
            await asyncio.sleep(0.5)
            continue
        try:
            await js.create_key_value(config)
            return
        except (NatsError, TimeoutError, OSError) as error:
            logger.warning("bucket %s cannot be made yet: %s", config.bucket, error)
            await asyncio.sleep(0.5)
    raise Unavailable(f"bucket {config.bucket} could not be made: has JetStream a leader?")


async def _put(client: Client, bucket: str, key: str, data: bytes) -> None:
    try:
        await client.jetstream(timeout=ASK_TIMEOUT_S).publish(f"$KV.{bucket}.{key}", data, timeout=ASK_TIMEOUT_S)
    except (NatsError, TimeoutError, OSError) as error:
        raise Unavailable(f"bucket {bucket} did not take {key} ({error or 'timeout'})") from error
    heed()


class KvLeadership:
    """The scheduler's sign that it reaches a quorum; see `services.scheduler.service.Leadership`.

    The first write takes the key from whoever had it; each later one names the write before it, so a leader whose key was
    taken renews no more, though it may not have read of the newer term yet. A write whose answer was lost is found again.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.subject = f"$KV.{subjects.LEADER_BUCKET}.scheduler"
        self.nonce = secrets.token_hex(8)
        self.count = 0
        self.revision: int | None = None

    async def renew(self, instance: str) -> None:
        """One acknowledged write. Raises Unavailable, also when another scheduler has the key."""
        self.count += 1
        value = f"{instance} {self.nonce} {self.count}".encode()
        headers = {"Nats-Expected-Last-Subject-Sequence": str(self.revision)} if self.revision is not None else None
        js = self.client.jetstream(timeout=ASK_TIMEOUT_S)
        try:
            ack = await js.publish(self.subject, value, timeout=ASK_TIMEOUT_S, headers=headers)
        except (NatsError, TimeoutError, OSError) as error:
            await self._find_own()
            raise Unavailable(f"the leadership was not renewed ({error or 'timeout'})") from error
        heed()
        self.revision = ack.seq

    async def _find_own(self) -> None:
        """The last write may be one of ours whose answer was lost: the next one is to name it."""
        try:
            message = await self.client.jetstream(timeout=ASK_TIMEOUT_S).get_last_msg(f"KV_{subjects.LEADER_BUCKET}", self.subject)
        except (NatsError, TimeoutError, OSError):
            return
        if message.seq is not None and self.nonce.encode() in (message.data or b""):
            self.revision = message.seq


class KvOutputs:
    """The last bytes of each ended member's output, by key `<job>.<attempt>.<rank>.<stream>`; or another bucket's values."""

    def __init__(self, client: Client, bucket: str = subjects.OUTPUT_BUCKET) -> None:
        self.client = client
        self.bucket = bucket

    async def put(self, key: str, data: bytes) -> None:
        """Raises Unavailable when it was not acknowledged."""
        await _put(self.client, self.bucket, key, data)

    async def get(self, key: str) -> bytes | None:
        """The bytes, or None when there were none. Raises Unavailable."""
        js = self.client.jetstream(timeout=ASK_TIMEOUT_S)
        try:
            message = await js.get_last_msg(f"KV_{self.bucket}", f"$KV.{self.bucket}.{key}")
        except NotFoundError:
            return None
        except (NatsError, TimeoutError, OSError) as error:
            raise Unavailable(f"bucket {self.bucket} did not answer ({error or 'timeout'})") from error
        return message.data
