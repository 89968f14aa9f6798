"""Signs snapshots, and reads only those of trusted makers. It wraps the real store.

The bucket proves nothing, because every gateway may write it. So `base` and its head are used only
if the trimmer signed them. Every other object is stored under its maker's key, and only that maker
reads it. An unsigned snapshot, from an earlier version or an attacker, is not used: the log is
folded instead, or the trimmer creates a new `base` from the archive. See decision 25. Test:
tests/attack/test_snapshots.py.
"""

import hashlib
import logging
from pathlib import Path
from typing import Final

import msgspec
import nkeys
from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

from libs.common.errors import Refused
from libs.common.safety import public_nkey
from libs.common.settings.settings import Settings
from libs.common.transport import snapshot
from libs.common.transport.snapshot_store import (
    BASE_HEAD_OBJECT,
    BASE_OBJECT,
    SnapshotStore,
)

# A prefix that no other message of the same key has, so that its signatures are valid for snapshots
# only.
CONTEXT: Final = b"\x00muster snapshot 1\x00"
# Objects of the trimmer, which all processes read.
TRIMMED: Final = (BASE_OBJECT, BASE_HEAD_OBJECT)
KEY_ADVICE: Final = "set MUSTER_TRIMMER_KEY_FILE to the file with the trimmer's public nkey"

logger = logging.getLogger(__name__)


class _Signed(msgspec.Struct, frozen=True, array_like=True, tag="muster signed snapshot"):
    signature: bytes
    data: bytes


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(_Signed)


class SignedSnapshots:
    """A store of signed snapshots; see `snapshot_store.SnapshotStore`.

    `trimmer` is the trimmer's public nkey; empty: no `base` is used. `known` is the commit of the
    newest `base` that this process has seen. An older one is refused.
    """

    def __init__(self, store: SnapshotStore, seed: bytes, trimmer: str) -> None:
        self.store = store
        self.pair = nkeys.from_seed(bytearray(seed))  # type: ignore[no-untyped-call]
        self.public = str(self.pair.public_key.decode())
        self.trimmer = trimmer
        self.known = 0

    async def put(self, name: str, data: bytes) -> None:
        signature = self.pair.sign(_signed_text(name, data))
        await self.store.put(self._place(name), _encode(_Signed(signature, data)))
        if name == BASE_OBJECT:
            self.known = max(self.known, snapshot.seq_of(data))

    async def get(self, name: str) -> bytes | None:
        stored = await self.store.get(self._place(name))
        if stored is None:
            return None
        maker = self.trimmer if name in TRIMMED else self.public
        data = opened(name, stored, maker)
        if data is None:
            logger.error("the snapshot %s is not used: %s", name, self._fault(name))
            return None
        if name not in TRIMMED:
            return data
        return data if self._is_newest(name, snapshot.seq_of(data)) else None

    def _is_newest(self, name: str, seq: int) -> bool:
        """Return whether no newer `base` was seen.

        A `base` of another version has sequence 0 here; its reader does not use it. A head is
        older for a moment, until the trimmer has stored the next one.
        """
        if 0 < seq < self.known and name == BASE_HEAD_OBJECT:
            return False
        if 0 < seq < self.known:
            text = (
                "the snapshot base of commit %d is not used: one of commit %d was stored before; "
                "check whether a gateway put it back"
            )
            logger.error(text, seq, self.known)
            return False
        self.known = max(self.known, seq)
        return True

    def _fault(self, name: str) -> str:
        """Return why an object of this name is not used, and what to do."""
        if name not in TRIMMED:
            return (
                f"it is not signed by this process's key {self.public}; the log is folded "
                "instead, and the next snapshot replaces it"
            )
        if not self.trimmer:
            return (
                "this process does not know the trimmer's key: set MUSTER_TRIMMER_KEY_FILE "
                "to the file with the trimmer's public nkey; "
                "until then a trimmed log cannot be read"
            )
        return (
            f"it is not signed by the trimmer {self.trimmer} (MUSTER_TRIMMER_KEY_FILE), as "
            "those of earlier versions are not: leave audit "
            "running until its trimmer has folded the archive and stored a signed one; until "
            "then a trimmed log cannot be read"
        )

    async def delete(self, name: str) -> None:
        await self.store.delete(self._place(name))

    def _place(self, name: str) -> str:
        return name if name in TRIMMED else f"{name}.{self.public}"


def opened(name: str, stored: bytes, maker: str) -> bytes | None:
    """Return the data of an object if this maker signed it under this name; else None."""
    try:
        signed = _decoder.decode(stored)
        VerifyKey(public_nkey.raw(maker)).verify(_signed_text(name, signed.data), signed.signature)
    except (msgspec.DecodeError, BadSignatureError, ValueError):
        return None
    return signed.data


def of(settings: Settings, store: SnapshotStore, seed: bytes | None = None) -> SnapshotStore:
    """Return the store for this process, which signs with `seed` or its own key.

    Without a key (tests) it signs and checks nothing.
    """
    seed = seed or settings.nkey_seed
    return SignedSnapshots(store, seed, trimmer_key(settings)) if seed is not None else store


def trimmer_key(settings: Settings) -> str:
    """Return the public key from MUSTER_TRIMMER_KEY_FILE; empty if it is not set.

    Raises Refused if the file holds none.
    """
    if not settings.trimmer_key_file:
        return ""
    path = Path(settings.trimmer_key_file)
    try:
        key = path.read_text().strip()
    except OSError as error:
        raise Refused(f"{path} cannot be read ({error.strerror}): {KEY_ADVICE}") from error
    if why := public_nkey.fault(key):
        raise Refused(f"{path} holds no public nkey ({why}): {KEY_ADVICE}")
    return key


def _signed_text(name: str, data: bytes) -> bytes:
    return CONTEXT + name.encode() + b"\x00" + hashlib.sha256(data).digest()
