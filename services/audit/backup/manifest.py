"""The manifest of a backup: which objects hold which commits and messages, up to one sequence.

Pure. A place has one current manifest. It is sealed, and names every other object by the SHA-256 of
its sealed bytes, so a changed, exchanged or missing object is noticed. An object that a manifest
names is never written again. Tests: tests/unit/test_backup_manifest.py.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from libs.common.errors import Corrupt, Refused, TooNew
from services.audit.chain.chain import GENESIS

FORMAT: Final = "muster-backup"
VERSION: Final = 1

Range = tuple[int, int]


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One sealed object.

    `name` is the SHA-256 of its `sealed_bytes`. It holds the sequences `first` to `last`; a
    bucket's stream may lack some of these sequences.
    """

    name: str
    sealed_bytes: int
    first: int
    last: int


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """One stream beside the log: its configuration, and its messages up to sequence `last`.

    `created` tells a stream from a later one of the same name. `live` are the ranges of sequences
    that had not been removed. Segments may hold removed messages too.
    """

    stream: str
    config: str
    created: str
    last: int = 0
    live: tuple[Range, ...] = ()
    segments: tuple[Segment, ...] = ()


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One backup.

    `root` is the hash of the first commit's link, which tells clusters apart. `chain` is the hash
    of the audit chain at commit `seq`. `files` is the object with the keys and the shape of the
    cluster. `at` is RFC 3339, `muster` the version that wrote it, `number` counts the backups of
    the place. `stop_lease_ms` is the long lease of a planned stop by the settings of the backup
    command; 0: an earlier version wrote the manifest.
    """

    format: str = FORMAT
    version: int = VERSION
    cluster_id: str
    root: str
    seq: int
    chain: str
    at: str
    muster: str
    number: int = 1
    log: tuple[Segment, ...] = ()
    buckets: tuple[Bucket, ...] = ()
    files: Segment | None = None
    stop_lease_ms: int = 0

    @property
    def segments(self) -> list[Segment]:
        """All objects that the manifest names."""
        found = [*self.log, *(each for bucket in self.buckets for each in bucket.segments)]
        return found if self.files is None else [*found, self.files]


class _Head(msgspec.Struct, frozen=True):
    format: str = ""
    version: int = 0


def encode(manifest: Manifest) -> bytes:
    return msgspec.json.encode(manifest)


def decode(data: bytes) -> Manifest:
    """Return the manifest. Raises TooNew for a later format, Corrupt if it does not add up."""
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.format == FORMAT and head.version > VERSION:
            raise TooNew(
                f"the backup has format {head.version}, and this muster knows {VERSION}: use the "
                "muster that wrote it, or a newer one"
            )
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as error:
        raise Corrupt(f"the backup's manifest cannot be read ({error})") from error
    if manifest.format != FORMAT or not _adds_up(manifest):
        raise Corrupt("the backup's manifest does not add up: use another copy of this backup")
    return manifest


def _adds_up(manifest: Manifest) -> bool:
    """Return whether the segments of the log hold every commit up to `seq`, once."""
    expected = 1
    for segment in manifest.log:
        if segment.first != expected or segment.last < segment.first:
            return False
        expected = segment.last + 1
    return expected == manifest.seq + 1 and (manifest.seq > 0 or manifest.chain == GENESIS)


def check_same_cluster(known: Manifest, cluster_id: str, root: str, place: str) -> None:
    """Raise Refused if the place holds the backup of another cluster."""
    if known.root != root:
        raise Refused(
            f"{place} holds the backup of another cluster ({known.cluster_id}, this one is "
            f"{cluster_id}): choose another place"
        )


def live_ranges(first: int, last: int, removed: Iterable[int]) -> tuple[Range, ...]:
    """Return the ranges of first to last without the removed sequences."""
    ranges: list[Range] = []
    start = first
    for seq in sorted(removed):
        if start <= seq <= last:
            if seq > start:
                ranges.append((start, seq - 1))
            start = seq + 1
    if start <= last:
        ranges.append((start, last))
    return tuple(ranges)


def is_live(ranges: Sequence[Range], seq: int) -> bool:
    """Return whether the sequence is in one of the ranges, which are in order."""
    low, high = 0, len(ranges)
    while low < high:
        middle = (low + high) // 2
        if ranges[middle][1] < seq:
            low = middle + 1
        else:
            high = middle
    return low < len(ranges) and ranges[low][0] <= seq


def kept_segments(segments: Sequence[Segment], ranges: Sequence[Range]) -> tuple[Segment, ...]:
    """Return the segments that may hold a live message."""
    return tuple(
        each
        for each in segments
        if any(first <= each.last and each.first <= last for first, last in ranges)
    )
