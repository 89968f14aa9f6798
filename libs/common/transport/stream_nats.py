"""A JetStream stream beside the log with one subject and one writer: AUDIT and AUDIT_HEADS.

Such a stream is a bounded copy of what its writer stores elsewhere; the oldest messages go first.
On a single server it is not synced at every message (it stores 500 messages/s with syncs, 10,000
without), so its end may be lost with the machine. The writer reads its end (`last`) and continues
from there. Tests: tests/integration/test_audit_stream.py.
"""

import json
from collections.abc import Sequence
from typing import Final

import msgspec
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.errors import APIError, NotFoundError

from libs.common.errors import Unavailable
from libs.common.process.cancellation import heed

ASK_TIMEOUT_S: Final = 5.0
MESSAGE_BYTES_MAX: Final = 1 << 20
DEDUPE_WINDOW_S: Final = 120


class Stored(msgspec.Struct, frozen=True):
    """A message of the stream. `data` is empty if the message no longer exists."""

    seq: int
    data: bytes


class NatsStream:
    """The stream for its writer. All methods raise Unavailable if JetStream fails or refuses."""

    def __init__(
        self, client: Client, name: str, subject: str, replicas: int, max_bytes: int
    ) -> None:
        self.client = client
        self.js = client.jetstream(timeout=ASK_TIMEOUT_S)
        self.name = name
        self.subject = subject
        self.replicas = replicas
        self.max_bytes = max_bytes

    async def make(self) -> None:
        """Create the stream unless it exists; never change it."""
        try:
            await self.js.stream_info(self.name)
        except NotFoundError:
            answer = await self._ask(
                f"$JS.API.STREAM.CREATE.{self.name}", json.dumps(self._config()).encode()
            )
            if "error" in json.loads(answer):
                raise Unavailable(
                    f"the stream {self.name} cannot be created: {json.loads(answer)['error']}"
                ) from None
        except (NatsError, TimeoutError, OSError) as error:
            raise self._unavailable(error) from error
        heed()

    def _config(self) -> dict[str, object]:
        """Return the configuration for the server. nats-py does not know `persist_mode`."""
        config: dict[str, object] = {
            "name": self.name,
            "subjects": [self.subject],
            "storage": "file",
            "retention": "limits",
            "discard": "old",
            "num_replicas": self.replicas,
            "max_bytes": self.max_bytes,
            "max_msg_size": MESSAGE_BYTES_MAX,
            "duplicate_window": DEDUPE_WINDOW_S * 1_000_000_000,
            "allow_direct": True,
        }
        return config | ({"persist_mode": "async"} if self.replicas == 1 else {})

    async def last(self) -> Stored | None:
        """Return the newest message from the stream's leader; None if there never was one."""
        try:
            seq = int((await self.js.stream_info(self.name)).state.last_seq)
            heed()
            return Stored(seq, await self._data(seq)) if seq else None
        except (NatsError, TimeoutError, OSError) as error:
            raise self._unavailable(error) from error

    async def _data(self, seq: int) -> bytes:
        try:
            return (await self.js.get_msg(self.name, seq=seq)).data or b""
        except NotFoundError:
            return b""

    async def append(self, messages: Sequence[tuple[str, bytes]], expected: int) -> int:
        """Store (id, bytes) in order behind message `expected`; return the number of the last one.

        Each message names the number that it expects before it, so none is stored twice or out of
        order. Only the last answer is awaited, because the last message is stored only if all
        others are. After Unavailable call `last`: a part may have been stored.
        """
        try:
            for place, (message_id, data) in enumerate(messages[:-1]):
                await self.client.publish(
                    self.subject, data, headers=_headers(message_id, expected + place)
                )
            message_id, data = messages[-1]
            ack = await self.js.publish(
                self.subject, data, headers=_headers(message_id, expected + len(messages) - 1)
            )
        except (APIError, NatsError, TimeoutError, OSError) as error:
            raise self._unavailable(error) from error
        heed()
        if ack.seq != expected + len(messages):
            raise Unavailable(
                f"the stream {self.name} stored message {message_id} as {ack.seq}: its end is read "
                "again"
            )
        return int(ack.seq)

    async def put(self, message_id: str, data: bytes) -> None:
        """Store one message at the end."""
        try:
            await self.js.publish(self.subject, data, headers={"Nats-Msg-Id": message_id})
        except (NatsError, TimeoutError, OSError) as error:
            raise self._unavailable(error) from error
        heed()

    async def _ask(self, subject: str, data: bytes) -> bytes:
        try:
            return bytes((await self.client.request(subject, data, timeout=ASK_TIMEOUT_S)).data)
        except (NatsError, TimeoutError, OSError) as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: BaseException) -> Unavailable:
        return Unavailable(
            f"the stream {self.name} does not answer ({error or 'timeout'}): check that JetStream "
            "runs"
        )


def _headers(message_id: str, expected: int) -> dict[str, str]:
    return {"Nats-Msg-Id": message_id, "Nats-Expected-Last-Sequence": str(expected)}
