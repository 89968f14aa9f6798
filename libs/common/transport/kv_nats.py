"""Key-value buckets on JetStream: the scheduler's leadership, and the last output of ended jobs.

A bucket is a stream `KV_<bucket>` with subjects `$KV.<bucket>.<key>`. A publish with an
acknowledgement is a quorum write, a direct get is a read. Only the scheduler creates buckets. No
write can remove other keys, because rollups and purges are denied.
"""

import asyncio
import logging
from typing import Final

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig, RawStreamMsg, StorageType, StreamConfig
from nats.js.errors import APIError, NotFoundError

from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.process.cancellation import heed
from libs.common.settings.settings import Settings
from libs.common.transport.connection_nats import ASK_TIMEOUT_S
from libs.common.transport.log_jetstream import WRONG_SEQUENCE
from libs.common.transport.revisions import NOTHING, Kept

CREATE_TRIES: Final = 20
CREATE_AGAIN_S: Final = 0.5

logger = logging.getLogger(__name__)


async def create_buckets(client: Client, settings: Settings) -> None:
    """Create LEADER, OUTPUT and SECRETS unless they exist.

    Raises Unavailable if no leader answers.
    """
    replicas, hours = settings.stream_replicas, settings.tail_hours
    leader = KeyValueConfig(
        subjects.LEADER_BUCKET, history=1, storage=StorageType.FILE, replicas=replicas
    )
    output = KeyValueConfig(
        subjects.OUTPUT_BUCKET,
        history=1,
        ttl=hours * 3_600,
        max_bytes=settings.tail_bytes,
        storage=StorageType.FILE,
        replicas=replicas,
    )
    secret = KeyValueConfig(
        subjects.SECRET_BUCKET, history=1, storage=StorageType.FILE, replicas=replicas
    )
    for config in (leader, output, secret):
        await _create_bucket(client, config)


async def _create_bucket(client: Client, config: KeyValueConfig) -> None:
    js = client.jetstream(timeout=ASK_TIMEOUT_S)
    for _ in range(CREATE_TRIES):
        try:
            found = (await js.stream_info(f"KV_{config.bucket}")).config
            if found.allow_rollup_hdrs or not found.deny_purge:
                await _deny_removals(js, found)
            return
        except NotFoundError:
            pass
        except (NatsError, TimeoutError, OSError):
            await asyncio.sleep(CREATE_AGAIN_S)
            continue
        try:
            await js.create_key_value(config)  # it allows rollups: the next round denies them
        except (NatsError, TimeoutError, OSError) as error:
            logger.warning("bucket %s cannot be created yet: %s", config.bucket, error)
            await asyncio.sleep(CREATE_AGAIN_S)
    raise Unavailable(
        f"bucket {config.bucket} could not be created: check that JetStream has a leader"
    )


async def _deny_removals(js: JetStreamContext, config: StreamConfig) -> None:
    """Deny rollups and purges in a bucket that an earlier version created.

    A message with the header Nats-Rollup would remove all other keys. A server with a configuration
    of an earlier version does not let the scheduler change a bucket; then the bucket stays as it
    is.
    """
    config.allow_rollup_hdrs, config.deny_purge = False, True
    try:
        await js.update_stream(config)
    except (NatsError, TimeoutError, OSError) as error:
        logger.error(
            (
                "%s still lets a writer remove all of its keys (%s): restart the NATS servers "
                "with this version"
            ),
            config.name,
            error,
        )


async def _put(client: Client, bucket: str, key: str, data: bytes) -> None:
    try:
        await client.jetstream(timeout=ASK_TIMEOUT_S).publish(
            f"$KV.{bucket}.{key}", data, timeout=ASK_TIMEOUT_S
        )
    except (NatsError, TimeoutError, OSError) as error:
        raise Unavailable(f"bucket {bucket} did not take {key} ({error or 'timeout'})") from error
    heed()


class KvLeadership:
    """The scheduler's proof that it reaches a quorum (`services.scheduler.leases.leases`).

    The key holds the epoch of the leading term. A term takes it only from lower terms, and each
    write names the previous one, so an older leader cannot renew it once a later one has written,
    even if the older one has not read of the later term yet.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.subject = f"$KV.{subjects.LEADER_BUCKET}.scheduler"
        self.revision: int | None = None

    async def renew(self, epoch: int) -> None:
        """Renew the leadership. Raises Unavailable, also if a later term has the key."""
        if self.revision is None:
            self.revision = await self._revision(epoch)
        headers = {"Nats-Expected-Last-Subject-Sequence": str(self.revision)}
        self.revision = None  # not known again before the answer
        try:
            ack = await self.client.jetstream(timeout=ASK_TIMEOUT_S).publish(
                self.subject, b"%d" % epoch, timeout=ASK_TIMEOUT_S, headers=headers
            )
        except (NatsError, TimeoutError, OSError) as error:
            raise Unavailable(f"the leadership was not renewed ({error or 'timeout'})") from error
        heed()
        self.revision = ack.seq

    async def _revision(self, epoch: int) -> int:
        """Return the revision of the key; 0 if there is none."""
        try:
            message = await self.client.jetstream(timeout=ASK_TIMEOUT_S).get_last_msg(
                f"KV_{subjects.LEADER_BUCKET}", self.subject
            )
        except NotFoundError:
            return 0
        except (NatsError, TimeoutError, OSError) as error:
            raise Unavailable(
                f"the leadership key cannot be read ({error or 'timeout'})"
            ) from error
        heed()
        data = message.data or b""
        holder = int(data) if data.isdigit() else 0  # an earlier version wrote a name
        if holder > epoch:
            raise Unavailable(f"term {holder} has the leadership key, and this is term {epoch}")
        return message.seq or 0


class KvOutputs:
    """The last output of ended members, by `<node>.<job>.<attempt>.<rank>.<stream>`.

    With another `bucket`, that bucket's values.
    """

    def __init__(self, client: Client, bucket: str = subjects.OUTPUT_BUCKET) -> None:
        self.client = client
        self.bucket = bucket

    async def put(self, key: str, data: bytes) -> None:
        """Store the bytes. Raises Unavailable if the write was not acknowledged."""
        await _put(self.client, self.bucket, key, data)

    async def get(self, key: str) -> bytes | None:
        """Return the bytes; None if there are none. Raises Unavailable."""
        message = await self._last(key)
        return message.data if message is not None else None

    async def kept(self, key: str) -> Kept:
        """Return the bytes with their revision. Raises Unavailable."""
        message = await self._last(key)
        return Kept(message.data or b"", message.seq or 0) if message is not None else NOTHING

    async def swap(self, key: str, data: bytes, revision: int) -> bool:
        """Replace the bytes of this revision; return False if there are others.

        Raises Unavailable.
        """
        headers = {"Nats-Expected-Last-Subject-Sequence": str(revision)}
        try:
            await self.client.jetstream(timeout=ASK_TIMEOUT_S).publish(
                f"$KV.{self.bucket}.{key}", data, timeout=ASK_TIMEOUT_S, headers=headers
            )
        except (NatsError, TimeoutError, OSError) as error:
            if isinstance(error, APIError) and error.err_code in WRONG_SEQUENCE:
                return False
            text = f"bucket {self.bucket} did not take {key} ({error or 'timeout'})"
            raise Unavailable(text) from error
        heed()
        return True

    async def _last(self, key: str) -> RawStreamMsg | None:
        """Return the last message of a key. Raises Unavailable."""
        js = self.client.jetstream(timeout=ASK_TIMEOUT_S)
        try:
            return await js.get_last_msg(f"KV_{self.bucket}", f"$KV.{self.bucket}.{key}")
        except NotFoundError:
            return None
        except (NatsError, TimeoutError, OSError) as error:
            raise Unavailable(
                f"bucket {self.bucket} did not answer ({error or 'timeout'})"
            ) from error
