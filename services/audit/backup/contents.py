"""Reads a backup, and proves each object before anything uses it.

A segment must have the SHA-256 that the manifest names, and open with the operator's key. The
commits must have every sequence once, and end in the manifest's hash of the audit chain.
"""

import hashlib
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

import msgspec

from libs.common.errors import Corrupt, Refused
from libs.common.transport.log import Entry
from services.audit.backup import manifest as m
from services.audit.backup import sealing
from services.audit.backup.manifest import Bucket, Manifest, Segment
from services.audit.backup.places import CURRENT, Place, segment_name
from services.audit.chain.chain import GENESIS, Link, extend

FILE_BYTES_MAX: Final = 16 << 20

_entries = msgspec.msgpack.Decoder(list[Entry])
_files = msgspec.msgpack.Decoder(dict[str, bytes])


class Opened(NamedTuple):
    """The current manifest of a place, and its sealed bytes."""

    manifest: Manifest
    sealed: bytes


async def current(place: Place, key: bytes, name: str) -> Opened | None:
    """Return the place's manifest; None if it holds no backup.

    Raises Refused for another key, Corrupt for a changed manifest.
    """
    sealed = await place.get(CURRENT)
    if sealed is None:
        return None
    data = sealing.opened(key, sealing.MANIFEST, sealed, f"the manifest of {name}")
    return Opened(m.decode(data), sealed)


class Contents:
    """The content of one backup. `name` is its place, for errors."""

    def __init__(self, place: Place, key: bytes, name: str, manifest: Manifest) -> None:
        self.place = place
        self.key = key
        self.name = name
        self.manifest = manifest

    async def commits(self) -> AsyncIterator[list[Entry]]:
        """Iterate over all commits, in order.

        Raises Corrupt if one is missing or changed, or if the chain does not end in the manifest's
        hash. The last batch is given before the chain's end is checked.
        """
        head: Link | None = None
        for segment in self.manifest.log:
            entries = await self.entries(segment)
            try:
                links = extend(head, entries)
            except Corrupt as error:
                raise self._damaged(segment, "its commits do not follow each other") from error
            if not links or (links[0].seq, links[-1].seq) != (segment.first, segment.last):
                raise self._damaged(segment, "it does not hold the commits that it should")
            head = links[-1]
            yield entries
        if (head.hash if head is not None else GENESIS) != self.manifest.chain:
            raise Corrupt(
                f"the commits of {self.name} do not have the chain that its manifest names: "
                "nothing was restored; use another copy of this backup"
            )

    async def messages(self, bucket: Bucket) -> AsyncIterator[list[Entry]]:
        """Iterate over the live messages of a bucket, in order."""
        for segment in bucket.segments:
            yield [
                entry for entry in await self.entries(segment) if m.is_live(bucket.live, entry.seq)
            ]

    async def files(self) -> dict[str, bytes]:
        """Return the files of the cluster by their path below the state directory."""
        segment = self.manifest.files
        if segment is None:
            return {}
        try:
            return _files.decode(await self._data(segment))
        except msgspec.DecodeError as error:
            raise self._damaged(segment, str(error)) from error

    async def entries(self, segment: Segment) -> list[Entry]:
        """Return the messages of a segment. Raises Corrupt, Refused, Unavailable."""
        try:
            return _entries.decode(await self._data(segment))
        except msgspec.DecodeError as error:
            raise self._damaged(segment, str(error)) from error

    async def _data(self, segment: Segment) -> bytes:
        what = f"the object {segment_name(segment.name)} of {self.name}"
        sealed = await self.place.get(segment_name(segment.name))
        if sealed is None:
            raise Corrupt(f"{what} is missing: use another copy of this backup")
        if hashlib.sha256(sealed).hexdigest() != segment.name:
            raise sealing.changed(what)
        return sealing.opened(self.key, sealing.SEGMENT, sealed, what)

    def _damaged(self, segment: Segment, why: str) -> Corrupt:
        return Corrupt(
            f"the object {segment_name(segment.name)} of {self.name} is not usable ({why}): use "
            "another copy of this backup"
        )


async def opened(place: Place, key: bytes, name: str) -> Contents:
    """Return the backup of a place. Raises Refused if there is none."""
    found = await current(place, key, name)
    if found is None:
        raise Refused(
            f"{name} holds no backup (it has no object `{CURRENT}`): check the place's name; "
            "`muster backup` makes one"
        )
    return Contents(place, key, name, found.manifest)
