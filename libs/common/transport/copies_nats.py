"""Whole streams, message by message: read for a backup, and written again at a restore.

A backup reads from the stream's leader, because a replica may be behind. A restore writes each
message at the place that it had, or stops: every message names the one that it expects before it.
Tests: tests/integration/test_backup.py.
"""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import msgspec
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.errors import APIError, NotFoundError

from libs.common.errors import Unavailable
from libs.common.process.cancellation import heed
from libs.common.transport.log import Entry

ASK_TIMEOUT_S: Final = 10.0
# More removed messages than these are not listed: then the stream is read as a whole.
REMOVED_MAX: Final = 50_000
# Messages and bytes that are sent before an answer is awaited.
GROUP_MESSAGES: Final = 256
GROUP_BYTES: Final = 4 << 20
NOT_FOUND: Final = 404


class StreamState(msgspec.Struct, frozen=True):
    """A stream now: its configuration (JSON), creation time, bounds, and removed sequences.

    `removed` None: there are more than REMOVED_MAX. `removals` counts all messages that were ever
    removed.
    """

    config: str
    created: str
    first: int
    last: int
    removed: tuple[int, ...] | None = ()
    removals: int = 0


class StreamCopies:
    """The streams of one account. All methods raise Unavailable."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.js = client.jetstream(timeout=ASK_TIMEOUT_S)

    async def state(self, stream: str) -> StreamState | None:
        """Return the stream's state; None if there is no such stream."""
        found = await self._asked(stream, {})
        if found is None:
            return None
        state, removed = found["state"], tuple[int, ...]()
        if int(state.get("num_deleted") or 0) > REMOVED_MAX:
            return _state(found, None)
        if state.get("num_deleted"):
            found = await self._asked(stream, {"deleted_details": True}) or found
            removed = tuple(int(seq) for seq in found["state"].get("deleted") or ())
        return _state(found, removed)

    async def messages(
        self, stream: str, after: int, upto: int, subject: str = ">"
    ) -> AsyncIterator[Entry]:
        """Iterate over the messages from `after` + 1 to `upto` that were not removed.

        Only those on subjects that match `subject`.
        """
        while after < upto:
            try:
                raw = await self.js.get_msg(
                    stream, seq=after + 1, subject=subject, direct=False, next=True
                )
            except NotFoundError:
                return
            except (NatsError, TimeoutError, OSError) as error:
                raise _unavailable(stream, error) from error
            heed()
            after = int(raw.seq or 0)
            if after <= upto:
                yield Entry(after, str(raw.subject), raw.data or b"")

    async def create(self, config: str, replicas: int) -> None:
        """Create a stream with this configuration (JSON), on so many servers."""
        wanted: dict[str, Any] = {**json.loads(config), "num_replicas": replicas}
        name = str(wanted["name"])
        try:
            answer = await self.client.request(
                f"$JS.API.STREAM.CREATE.{name}", json.dumps(wanted).encode(), timeout=ASK_TIMEOUT_S
            )
        except (NatsError, TimeoutError, OSError) as error:
            raise _unavailable(name, error) from error
        heed()
        if "error" in (found := json.loads(answer.data)):
            raise Unavailable(f"the stream {name} cannot be created: {found['error']}")

    async def write(self, stream: str, messages: Sequence[tuple[str, bytes]], before: int) -> int:
        """Append (subject, bytes) behind message `before`; return the last one's sequence."""
        start, size = 0, 0
        for place, (_, data) in enumerate(messages):
            size += len(data)
            if place + 1 - start >= GROUP_MESSAGES or size >= GROUP_BYTES:
                before = await self._group(stream, messages[start : place + 1], before)
                start, size = place + 1, 0
        rest = messages[start:]
        return await self._group(stream, rest, before) if rest else before

    async def _group(self, stream: str, messages: Sequence[tuple[str, bytes]], before: int) -> int:
        """Append one group. The last message is stored only if all others are."""
        try:
            for place, (subject, data) in enumerate(messages[:-1]):
                await self.client.publish(subject, data, headers=_expects(before + place))
            subject, data = messages[-1]
            last = before + len(messages) - 1
            ack = await self.js.publish(subject, data, headers=_expects(last))
        except (APIError, NatsError, TimeoutError, OSError) as error:
            raise _unavailable(stream, error) from error
        heed()
        return int(ack.seq)

    async def _asked(self, stream: str, question: dict[str, Any]) -> dict[str, Any] | None:
        try:
            answer = await self.client.request(
                f"$JS.API.STREAM.INFO.{stream}", json.dumps(question).encode(), ASK_TIMEOUT_S
            )
        except (NatsError, TimeoutError, OSError) as error:
            raise _unavailable(stream, error) from error
        heed()
        found: dict[str, Any] = json.loads(answer.data)
        fault = found.get("error")
        if fault and fault.get("code") == NOT_FOUND:
            return None
        if fault:
            raise _unavailable(stream, fault)
        return found


def _state(found: dict[str, Any], removed: tuple[int, ...] | None) -> StreamState:
    state = found["state"]
    return StreamState(
        config=json.dumps(found["config"], sort_keys=True),
        created=str(found["created"]),
        first=int(state["first_seq"]) or 1,
        last=int(state["last_seq"]),
        removed=removed,
        removals=int(state["last_seq"]) - int(state["messages"]),
    )


def _expects(seq: int) -> dict[str, str]:
    return {"Nats-Expected-Last-Sequence": str(seq)}


def _unavailable(stream: str, error: object) -> Unavailable:
    return Unavailable(
        f"the stream {stream} does not answer ({error or 'timeout'}): check that JetStream runs, "
        "then repeat the command"
    )
