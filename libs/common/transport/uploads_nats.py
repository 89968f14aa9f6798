"""The bucket UPLOADS: archives of directories, each an object named `<tenant>.<sha256>`.

The twin is `uploads.MemoryUploads`. Only gateways use the bucket. nats-py's object store writes
objects. Each change of an entry names the entry before it, so of two gateways that change one at
the same time the later one notices, and removes the pieces that would belong to no entry. Direct
gets read pieces and the list, each behind the message before it, so there are no consumers, and any
gateway can continue where another one stopped.
"""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Awaitable
from datetime import UTC, datetime
from io import BufferedIOBase
from typing import Any, Final, TypeVar, cast

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import Header, ObjectMeta, ObjectMetaOptions, ObjectStoreConfig, RawStreamMsg
from nats.js.client import JetStreamContext
from nats.js.errors import APIError, BucketNotFoundError, NotFoundError, ObjectNotFoundError
from nats.js.object_store import ObjectStore

from libs.common import subjects
from libs.common.errors import Refused, Unavailable
from libs.common.process.cancellation import heed
from libs.common.transport.upload_index import UploadIndex, upload_of
from libs.common.transport.uploads import PIECE_BYTES, Piece, Space, Upload

ASK_TIMEOUT_S: Final = 10.0
# Age at which pieces that belong to no archive are removed (a gateway was killed while it wrote
# them), and the interval of the search for them.
ABANDONED_S: Final = 86_400
SWEEP_S: Final = 3_600
BUCKET: Final = subjects.UPLOAD_BUCKET
STREAM: Final = f"OBJ_{BUCKET}"
# The server's error codes for a stream at its bound, and for a store without space.
FULL: Final = (10077, 10023, 10047)
# The server's error codes for a change whose entry before it is not the newest one any more. With
# several servers it is the second one until the other change is stored, and the first one then.
WRONG_LAST: Final = (10071, 10164)
EXPECTED_LAST: Final = str(Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value)
TRIES: Final = 5
# The pause after a change that was overtaken, until the servers have stored the other change.
OVERTAKEN_S: Final = 0.2
# The message replaces all earlier ones of its subject.
ROLL_UP: Final = {str(Header.ROLLUP.value): "sub"}
# The list is bounded.
LISTED_MAX: Final = 100_000
# Parts of the bucket's log that are read side by side, and the least length of one.
PARTS_MAX: Final = 16
PART_MIN: Final = 64

T = TypeVar("T")


class NatsUploads:
    """A store of uploads on NATS; see `uploads.UploadStore`.

    The first put creates the bucket. A failed put removes its pieces; if its gateway was killed, a
    later put does.
    """

    def __init__(self, client: Client, replicas: int, bytes_max: int) -> None:
        self.js = client.jetstream(timeout=ASK_TIMEOUT_S)
        self.config = ObjectStoreConfig(replicas=replicas, max_bytes=bytes_max)
        self.bytes_max = bytes_max
        self.index = UploadIndex("")
        self.reading = asyncio.Lock()
        self.sweep_at = 0.0

    async def put(self, tenant: str, sha256: str, archive: BufferedIOBase) -> None:
        await self._made()
        if self.sweep_at <= time.monotonic():
            self.sweep_at = time.monotonic() + SWEEP_S
            await self._sweep()
        name = _name(tenant, sha256)
        for _ in range(TRIES):
            before = await self._entry(name)
            changing = cast(JetStreamContext, _Changing(self.js, name, before))
            store = ObjectStore(BUCKET, STREAM, changing)
            meta = ObjectMeta(options=ObjectMetaOptions(max_chunk_size=PIECE_BYTES))
            archive.seek(0)
            try:
                await _awaited(store.put(name, archive, meta))
                return
            except _Overtaken:  # the object store has removed the pieces
                await asyncio.sleep(OVERTAKEN_S)
                if await self.find(tenant, sha256) is not None:
                    return  # another gateway has stored the same archive
        raise _contended(name)

    async def find(self, tenant: str, sha256: str) -> Upload | None:
        found = await self._info(tenant, sha256)
        return upload_of(found) if found is not None else None

    async def piece(self, tenant: str, sha256: str, mark: int) -> Piece | None:
        found = await self._info(tenant, sha256)
        message = await self._next(_pieces(found["nuid"]), mark) if found is not None else None
        return (
            Piece(message.seq, message.data or b"") if message is not None and message.seq else None
        )

    async def remove(self, tenant: str, sha256: str) -> None:
        name = _name(tenant, sha256)
        for _ in range(TRIES):
            before = await self._entry(name)
            info = json.loads(before.data or b"{}") if before is not None else {}
            if not info or info.get("deleted"):
                return
            gone = info | {"deleted": True, "size": 0, "chunks": 0, "digest": "", "mtime": ""}
            changing = _Changing(self.js, name, before)
            try:
                await _awaited(
                    changing.publish(changing.subject, json.dumps(gone).encode(), ROLL_UP)
                )
            except _Overtaken:
                await asyncio.sleep(OVERTAKEN_S)
                continue
            await _awaited(self.js.purge_stream(STREAM, subject=_pieces(info["nuid"])))
            return
        raise _contended(name)

    async def listed(self) -> list[Upload]:
        found = [upload_of(info) async for info in self._infos()]
        return sorted(found, key=lambda each: (each.tenant, each.sha256))

    async def space(self) -> Space:
        try:
            info = await _awaited(self.js.stream_info(STREAM))
        except NotFoundError:
            return Space([], self.bytes_max)
        async with self.reading:
            if self.index.created != str(info.created):
                self.index = UploadIndex(str(info.created))
            await self._read_on(self.index, info.state.last_seq)
        return Space(list(self.index.uploads.values()), info.config.max_bytes or self.bytes_max)

    async def _read_on(self, index: UploadIndex, last_seq: int) -> None:
        """Read the entries up to this sequence that are new since the last call.

        The parts of a long log are read side by side, because each entry is a question of its own.
        """
        step = max(PART_MIN, -(-(last_seq - index.mark) // PARTS_MAX))
        begins = range(index.mark, last_seq, step)
        parts = (self._entries(begin, min(begin + step, last_seq)) for begin in begins)
        for part in await asyncio.gather(*parts):
            for message in part:
                index.note(message.seq or 0, json.loads(message.data or b"{}"))
        index.mark = max(index.mark, last_seq)

    async def _entries(self, mark: int, last_seq: int) -> list[RawStreamMsg]:
        """Return the entries behind `mark`, up to this sequence."""
        found: list[RawStreamMsg] = []
        while mark < last_seq and len(found) < LISTED_MAX:
            message = await self._next(f"$O.{BUCKET}.M.>", mark)
            mark = last_seq if message is None else message.seq or last_seq
            if message is not None and mark <= last_seq:
                found.append(message)
        return found

    async def _infos(self) -> AsyncIterator[dict[str, Any]]:
        mark = 0
        for _ in range(LISTED_MAX):
            message = await self._next(f"$O.{BUCKET}.M.>", mark)
            if message is None:
                return
            info, mark = json.loads(message.data or b"{}"), message.seq or 0
            if not info.get("deleted"):
                yield info

    async def _sweep(self) -> None:
        """Remove old pieces that belong to no archive.

        The pieces are listed before the archives, so pieces of an archive that is completed
        meanwhile are kept.
        """
        pieces = (
            await _awaited(self.js.stream_info(STREAM, subjects_filter=_pieces("*")))
        ).state.subjects or {}
        named = {_pieces(info["nuid"]): None async for info in self._infos()}
        for subject in [subject for subject in pieces if subject not in named]:
            first = await self._next(subject, 0)
            if (
                first is not None
                and first.time is not None
                and (datetime.now(UTC) - first.time).total_seconds() >= ABANDONED_S
            ):
                await _awaited(self.js.purge_stream(STREAM, subject=subject))

    async def _info(self, tenant: str, sha256: str) -> dict[str, Any] | None:
        try:
            info = await _awaited(
                ObjectStore(BUCKET, STREAM, self.js).get_info(_name(tenant, sha256))
            )
        except (NotFoundError, ObjectNotFoundError):
            return None
        found: dict[str, Any] = info.as_dict()
        return found

    async def _next(self, subject: str, mark: int) -> RawStreamMsg | None:
        """Return the first message on `subject` behind `mark`.

        A replica is read first. It may lag, or miss a bucket that was just created, so the
        leader is read next.
        """
        for direct in (True, False):
            try:
                return await _awaited(
                    self.js.get_msg(STREAM, seq=mark + 1, subject=subject, direct=direct, next=True)
                )
            except NotFoundError:
                continue
            except Unavailable:
                if not direct:
                    raise
        return None

    async def _entry(self, name: str) -> RawStreamMsg | None:
        """Return the newest entry of an archive, also of a removed one, as the leader has it."""
        try:
            return await _awaited(self.js.get_last_msg(STREAM, _entry_subject(name), direct=False))
        except NotFoundError:
            return None

    async def _made(self) -> None:
        try:
            await _awaited(self.js.object_store(BUCKET))
        except (BucketNotFoundError, NotFoundError):
            await _awaited(self.js.create_object_store(BUCKET, self.config))


class _Overtaken(Exception):
    """Another gateway changed the entry of the archive at the same time."""


class _Changing:
    """The stream, as nats-py's object store uses it to change one archive.

    The change of the archive's entry fails unless `before` is still the newest one.
    """

    def __init__(self, js: JetStreamContext, name: str, before: RawStreamMsg | None) -> None:
        self.js = js
        self.subject = _entry_subject(name)
        self.seq = before.seq or 0 if before is not None else 0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  of nats-py
        return getattr(self.js, name)

    async def publish(
        self, subject: str, payload: bytes, headers: dict[str, str] | None = None
    ) -> None:
        if subject == self.subject:
            headers = {**(headers or {}), EXPECTED_LAST: str(self.seq)}
        await self.js.publish(subject, payload, headers=headers)


async def _awaited(question: Awaitable[T]) -> T:
    """Await a call.

    Raises Refused if there is no space, _Overtaken, Unavailable, or nats-py's not-found errors.
    """
    try:
        answer = await question
    except (BucketNotFoundError, NotFoundError, ObjectNotFoundError):
        raise
    except APIError as error:
        if error.err_code in WRONG_LAST:
            raise _Overtaken from error
        if error.err_code in FULL:
            raise Refused(
                f"the bucket {BUCKET} is full ({error.description}): remove old uploads, or "
                "enlarge it"
            ) from error
        raise Unavailable(
            f"the bucket {BUCKET} refused ({error.description}): check the state of JetStream"
        ) from error
    except (NatsError, TimeoutError, OSError) as error:
        raise Unavailable(
            f"the bucket {BUCKET} did not answer ({error or 'timeout'}): check that JetStream runs"
        ) from error
    heed()
    return answer


def _name(tenant: str, sha256: str) -> str:
    """Return the object's name. A tenant's name has no dot."""
    return f"{tenant}.{sha256}"


def _entry_subject(name: str) -> str:
    """Return the subject of an archive's entry."""
    return f"$O.{BUCKET}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


def _contended(name: str) -> Unavailable:
    return Unavailable(f"other gateways change upload {name} all the time: try again in a moment")


def _pieces(nuid: str) -> str:
    """Return the subject of an archive's pieces."""
    return f"$O.{BUCKET}.C.{nuid}"
