"""The position of each destination: which facts it has got, and how its deliveries go.

The entry of a destination is replaced only by the process that read it last. Tests:
tests/integration/test_notify_delivery.py.
"""

import asyncio
from typing import Final

import msgspec

from libs.common.errors import Fenced, Unavailable
from libs.common.state.notifications import Destination
from libs.common.transport.revisions import NOTHING, Kept, Revisions

AGAIN_S: Final = 1.0
# The position behind the last fact of a commit.
WHOLE: Final = 1 << 31

_encode: Final = msgspec.msgpack.Encoder().encode


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a destination: it has every chosen fact up to `position` of commit `seq`.

    `created_seq` tells this destination from an earlier one in the same slot. `failures` counts the
    tries that failed since the last success, `error` is the reason of the last one. `skipped`
    facts were given up.
    """

    seq: int
    position: int = WHOLE
    created_seq: int = 0
    sent: int = 0
    sent_ns: int = 0
    failures: int = 0
    failing_ns: int = 0
    error: str = ""
    skipped: int = 0


_decoder: Final = msgspec.msgpack.Decoder(Progress)


def key_of(destination: Destination) -> str:
    """Return the key of a destination's entry. Slots are used again, so keys are bounded."""
    return f"at.{destination.tenant}.{destination.slot}"


def progress_in(kept: Kept, destination: Destination, restored_seq: int) -> Progress:
    """Return the progress in an entry; for another destination or none, that of a new one.

    After a restore from a backup, which holds no positions, facts before it are not sent again.
    """
    try:
        found = _decoder.decode(kept.data) if kept.data else None
    except msgspec.DecodeError:
        found = None
    if found is not None and found.created_seq == destination.created_seq:
        return found
    return Progress(
        seq=max(destination.created_seq, restored_seq), created_seq=destination.created_seq
    )


class Position:
    """The entry of one destination, as one process holds it."""

    def __init__(self, store: Revisions, destination: Destination) -> None:
        self.store = store
        self.destination = destination
        self.key = key_of(destination)
        self.kept = NOTHING

    async def load(self, restored_seq: int) -> Progress:
        """Read the entry, waiting while the store does not answer."""
        self.kept = await self._get()
        return progress_in(self.kept, self.destination, restored_seq)

    async def save(self, progress: Progress) -> None:
        """Replace the entry, waiting while the store does not answer.

        Raises Fenced if another process has written it.
        """
        data = _encode(progress)
        while True:
            try:
                revision = await self.store.put(self.key, data, self.kept.revision)
            except Unavailable:
                await asyncio.sleep(AGAIN_S)
                now = await self._get()
                if now.revision == self.kept.revision:
                    continue
                if now.data != data:
                    raise Fenced(f"{self.key} was written by another gateway") from None
                revision = now.revision
            self.kept = Kept(data, revision)
            return

    async def _get(self) -> Kept:
        while True:
            try:
                return await self.store.get(self.key)
            except Unavailable:
                await asyncio.sleep(AGAIN_S)
