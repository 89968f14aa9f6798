"""Makes a backup of a running cluster: what is new since the last backup of the same place.

The backup is the state at one sequence of the log. If a later commit changes a secret while the
buckets beside the log are read, or an upload that a commit needs is removed, they are read again,
for the later sequence. Every object is read back and compared before the manifest names it, and the
manifest is replaced last, so a killed backup leaves the last one whole. Tests:
tests/integration/test_backup.py and test_backup_uploads.py.
"""

import hashlib
import sys
from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec

from libs.common import facts as f
from libs.common import installed, reading, subjects
from libs.common.errors import Corrupt, Refused, Unavailable
from libs.common.transport import archive
from libs.common.transport.bus import Bus
from libs.common.transport.copies_nats import StreamCopies
from libs.common.transport.log import Entry, Log
from services.audit.backup import contents, sealing
from services.audit.backup import manifest as m
from services.audit.backup.contents import Contents
from services.audit.backup.manifest import Bucket, Manifest, Segment
from services.audit.backup.places import CURRENT, SEGMENTS, Place, segment_name
from services.audit.backup.upload_check import UPLOADS, UploadCheck
from services.audit.chain.chain import GENESIS, Link, extend

# Plain bytes in one segment: the memory of a backup is a few of them.
SEGMENT_BYTES: Final = 8 << 20
# Age in seconds at which objects left by a killed backup are removed.
LEFT_S: Final = 86_400.0
# Maximum number of reads of the buckets if secrets change or needed uploads are removed meanwhile.
CONSISTENT_TRIES: Final = 10
# Empty batches of the log in a row, of half a second each, after which it counts as silent.
SILENT_MAX: Final = 20
# The streams beside the log. LEADER, SNAPSHOTS and AUDIT are not among them: the scheduler, the
# trimmer and audit make them again from the log.
BUCKETS: Final = (
    f"KV_{subjects.SECRET_BUCKET}",
    f"KV_{subjects.OUTPUT_BUCKET}",
    f"KV_{subjects.SESSION_BUCKET}",
    UPLOADS,
    subjects.HEADS_STREAM,
)
# Facts that belong to a value in a bucket.
OF_BUCKETS: Final = (
    f.SecretSet,
    f.SecretRemoved,
    f.NotificationSet,
    f.NotificationRemoved,
)

_encode = msgspec.msgpack.Encoder().encode


class Source(msgspec.Struct, frozen=True):
    """The running cluster. `files` returns its keys and shape, by path.

    `stop_lease_ms` is the long lease of a planned stop by this process's settings.
    """

    log: Log
    bus: Bus
    copies: StreamCopies
    files: Callable[[], dict[str, bytes]]
    cluster_id: str
    stop_lease_ms: int = 0


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr)


class BackingUp:
    """One backup of `source` to `place`. `name` is the place, for messages; `at` its time. `warn`
    tells the user of a fault that does not stop the backup.
    """

    def __init__(
        self,
        source: Source,
        place: Place,
        key: bytes,
        name: str,
        at: str,
        warn: Callable[[str], None] = _to_stderr,
    ) -> None:
        self.source = source
        self.place = place
        self.key = key
        self.name = name
        self.at = at
        self.warn = warn
        self.written_bytes = 0

    async def run(self) -> Manifest:
        """Make the backup and return its manifest.

        Raises Refused if the place holds another cluster or another history, Corrupt if it is
        damaged, Unavailable.
        """
        found = await contents.current(self.place, self.key, self.name)
        known = found.manifest if found is not None else None
        root = await self._root()
        if known is not None:
            m.check_same_cluster(known, self.source.cluster_id, root, self.name)
            await self._check_same_history(known)
        buckets, seq = await self._consistent(known)
        log, chain = await self._commits(known, seq)
        manifest = Manifest(
            cluster_id=self.source.cluster_id,
            root=root,
            seq=seq,
            chain=chain,
            at=self.at,
            muster=installed.version(),
            number=known.number + 1 if known is not None else 1,
            log=log,
            buckets=buckets,
            files=await self._stored(_encode(self.source.files()), 0, 0),
            stop_lease_ms=self.source.stop_lease_ms,
        )
        await self._replace(manifest, found.sealed if found is not None else None)
        await self._remove_left(manifest)
        return manifest

    async def _root(self) -> str:
        if not (await self.source.log.bounds())[1]:
            raise Refused(
                "the log has no commit yet: nothing was backed up; start the cluster first"
            )
        return extend(None, [await self._entry(1)])[0].hash

    async def _check_same_history(self, known: Manifest) -> None:
        """Raise Refused if the log does not continue what the place holds."""
        if not known.log:
            return
        last = (await self._contents(known).entries(known.log[-1]))[-1]
        end = (await self.source.log.bounds())[1]
        if end >= last.seq and await self._entry(last.seq) == last:
            return
        raise Refused(
            f"the log is not the one that {self.name} holds up to commit {known.seq} (it ends at "
            f"{end}): it was restored from an older backup; choose another place"
        )

    def _contents(self, known: Manifest) -> Contents:
        return Contents(self.place, self.key, self.name, known)

    async def _entry(self, seq: int) -> Entry:
        """Return a commit that exists.

        A slow server may return nothing for a while. Raises Unavailable after SILENT_MAX such
        batches.
        """
        silent = 0
        async for batch in archive.whole(self.source.log, self.source.bus, seq - 1, seq):
            if batch:
                return batch[0]
            silent += 1
            if silent > SILENT_MAX:
                break
        raise Unavailable(
            f"the log did not return commit {seq}: nothing was backed up; check that the NATS "
            "server is not overloaded, and repeat the command"
        )

    async def _consistent(self, known: Manifest | None) -> tuple[tuple[Bucket, ...], int]:
        """Return a sequence, and the buckets with all that the commits up to it need.

        The sequence is taken before the buckets are read: a gateway stores an upload or a secret
        before the fact about it. The mark of the uploads is taken before the sequence, so the check
        notices each upload that was removed between the sequence and the read. Raises Unavailable
        if secrets or needed uploads change all the time.
        """
        before = {bucket.stream: bucket for bucket in known.buckets} if known is not None else {}
        check = UploadCheck(self.source.log, self.source.bus, self.source.copies)
        mark = await check.mark()
        _, begin = await self.source.log.bounds()
        for _ in range(CONSISTENT_TRIES):
            read = [await self._bucket(stream, before.get(stream)) for stream in BUCKETS]
            buckets = tuple(bucket for bucket in read if bucket is not None)
            next_mark = await check.mark()
            _, end = await self.source.log.bounds()
            read_to = max((each.last for each in buckets if each.stream == UPLOADS), default=0)
            has_changed = await self._changed(begin, end)
            if not has_changed and not await check.lacks(mark, next_mark, read_to, seq=begin):
                return buckets, begin
            begin, mark, before = end, next_mark, {bucket.stream: bucket for bucket in buckets}
        raise Unavailable(
            "secrets changed, or uploads that jobs or models use were removed, during each of "
            f"{CONSISTENT_TRIES} reads: nothing was backed up, and the last backup is unchanged; "
            "repeat the command"
        )

    async def _changed(self, begin: int, end: int) -> bool:
        """Return whether a commit between these two changed what a bucket holds."""
        async for batch in self._log(begin, end):
            for entry in batch:
                if subjects.writer_kind(entry.subject) == subjects.GATEWAY_KIND and any(
                    isinstance(fact, OF_BUCKETS)
                    for fact in reading.read_alone(entry.subject, entry.data).facts
                ):
                    return True
        return False

    async def _bucket(self, stream: str, before: Bucket | None) -> Bucket | None:
        """Store what is new in a stream; return it with what earlier backups hold."""
        state = await self.source.copies.state(stream)
        if state is None:
            return None
        goes_on = (
            before is not None
            and state.removed is not None
            and before.created == state.created
            and before.last <= state.last
        )
        kept, after = (before.segments, before.last) if before and goes_on else ((), 0)
        segments, seqs = list(kept), list[int]()
        async for part in _parts(self._messages(stream, after, state.last)):
            segments.append(await self._stored(_encode(part), part[0].seq, part[-1].seq))
            seqs += [entry.seq for entry in part]
        live = (
            m.live_ranges(state.first, state.last, state.removed)
            if state.removed is not None
            else _ranges(seqs)
        )
        return Bucket(
            stream=stream,
            config=state.config,
            created=state.created,
            last=state.last,
            live=live,
            segments=m.kept_segments(segments, live),
        )

    async def _messages(self, stream: str, after: int, upto: int) -> AsyncIterator[list[Entry]]:
        async for entry in self.source.copies.messages(stream, after, upto):
            yield [entry]

    async def _commits(self, known: Manifest | None, upto: int) -> tuple[tuple[Segment, ...], str]:
        """Store the commits after the last backup; return all segments and the chain's hash."""
        segments = list(known.log) if known is not None else []
        after, chain = (known.seq, known.chain) if known is not None else (0, GENESIS)
        head = (
            Link(index=after - 1, seq=after, subject="", hash=chain, previous_hash="")
            if after
            else None
        )
        async for part in _parts(self._log(after, upto)):
            head = extend(head, part)[-1]
            segments.append(await self._stored(_encode(part), part[0].seq, part[-1].seq))
        if (head.seq if head is not None else 0) != upto:
            raise Unavailable(
                f"the log ended at {head.seq if head else 0}, before commit {upto}: nothing was "
                "backed up; repeat the command"
            )
        return tuple(segments), head.hash if head is not None else GENESIS

    async def _log(self, after: int, upto: int) -> AsyncIterator[list[Entry]]:
        """Iterate over the commits of these sequences, from the log or the archive."""
        if after >= upto:
            return
        async for batch in archive.whole(self.source.log, self.source.bus, after, upto):
            yield [entry for entry in batch if entry.seq <= upto]

    async def _stored(self, data: bytes, first: int, last: int) -> Segment:
        """Seal and store an object, and read it back."""
        sealed = sealing.seal(self.key, sealing.SEGMENT, data)
        name = hashlib.sha256(sealed).hexdigest()
        await self._put(segment_name(name), sealed)
        return Segment(name=name, sealed_bytes=len(sealed), first=first, last=last)

    async def _put(
        self, name: str, sealed: bytes, damage: str = "the last backup is unchanged"
    ) -> None:
        await self.place.put(name, sealed)
        if await self.place.get(name) != sealed:
            raise Corrupt(
                f"{self.name} does not return {name} as it was written: check the place's disk or "
                f"store; {damage}"
            )
        self.written_bytes += len(sealed)

    async def _replace(self, manifest: Manifest, before: bytes | None) -> None:
        """Replace the manifest, unless another backup has done so meanwhile."""
        if await self.place.get(CURRENT) != before:
            raise Refused(
                f"another backup to {self.name} has ended meanwhile: run one at a time, and repeat "
                "the command if you need one of now"
            )
        await self._put(
            CURRENT,
            sealing.seal(self.key, sealing.MANIFEST, m.encode(manifest)),
            "it held the last backup, so the place may hold no readable backup now: run `muster "
            "backup --check`, and make a backup to another place if it fails",
        )

    async def _remove_left(self, manifest: Manifest) -> None:
        """Remove old objects that no manifest names: of killed backups, or no longer live.

        The backup is complete before, so a fault is a warning only.
        """
        named = {segment_name(segment.name): None for segment in manifest.segments}
        try:
            for name in await self.place.old_names(SEGMENTS, LEFT_S):
                if name not in named:
                    await self.place.delete(name)
        except (Refused, Unavailable, OSError) as error:
            self.warn(
                f"warning: the backup is complete, but old objects that it does not need may stay "
                f"in {self.name} ({error}): allow this user to list and delete objects there"
            )


async def _parts(batches: AsyncIterator[list[Entry]]) -> AsyncIterator[list[Entry]]:
    """Regroup batches into parts of about SEGMENT_BYTES."""
    part, size = list[Entry](), 0
    async for batch in batches:
        for entry in batch:
            if part and size + len(entry.data) > SEGMENT_BYTES:
                yield part
                part, size = [], 0
            part.append(entry)
            size += len(entry.data) + len(entry.subject)
    if part:
        yield part


def _ranges(seqs: list[int]) -> tuple[m.Range, ...]:
    """Return the ranges of ascending sequences."""
    found: list[m.Range] = []
    for seq in seqs:
        if found and found[-1][1] == seq - 1:
            found[-1] = (found[-1][0], seq)
        else:
            found.append((seq, seq))
    return tuple(found)
