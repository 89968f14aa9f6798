"""The bucket SESSIONS: keys of one-time links and sign-ons that were used.

A key-value bucket on JetStream. A publish that expects no earlier message of its subject is an
atomic create, so of two gateways one gets the key. The bucket forgets keys after KEPT_S; links and
sign-ons expire sooner. The first use creates the bucket.
"""

from typing import Final

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import KeyValueConfig, StorageType
from nats.js.errors import APIError, NoStreamResponseError

from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.process.cancellation import heed

ASK_TIMEOUT_S: Final = 5.0
# Longer than any link or sign-on is valid.
KEPT_S: Final = 1_800
BYTES_MAX: Final = 16 << 20
# The server's error code for a subject that has a message already.
WRONG_SEQUENCE: Final = (10071, 10164)
CREATE: Final = {"Nats-Expected-Last-Subject-Sequence": "0"}


class KvOnce:
    """A store of used keys on NATS; see `once.OnceStore`."""

    def __init__(self, client: Client, replicas: int) -> None:
        self.js = client.jetstream(timeout=ASK_TIMEOUT_S)
        self.config = KeyValueConfig(
            subjects.SESSION_BUCKET,
            history=1,
            ttl=KEPT_S,
            max_bytes=BYTES_MAX,
            storage=StorageType.FILE,
            replicas=replicas,
        )

    async def take(self, key: str) -> bool:
        """Return whether this is the first use of the key. Raises Unavailable."""
        try:
            try:
                taken = await self._create(key)
            except NoStreamResponseError:
                await self.js.create_key_value(self.config)
                taken = await self._create(key)
        except (NatsError, TimeoutError, OSError) as error:
            raise Unavailable(
                f"bucket {subjects.SESSION_BUCKET} did not take a key ({error or 'timeout'}): "
                "check that JetStream runs"
            ) from error
        heed()
        return taken

    async def _create(self, key: str) -> bool:
        subject = f"$KV.{subjects.SESSION_BUCKET}.{key}"
        try:
            await self.js.publish(subject, b"", timeout=ASK_TIMEOUT_S, headers=CREATE)
        except APIError as error:
            if error.err_code in WRONG_SEQUENCE:
                return False
            raise
        return True
