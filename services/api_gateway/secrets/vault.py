"""Tenants' secrets at rest: sealed with one derived key per tenant, under a key that only the
gateways' host has. The keys of replicas and of sessions are derived from it too, and stored
nowhere.

Without the vault's key file the contents of the bucket SECRETS cannot be read. `Vault.get` notices
a value that was moved to another tenant or another name. Tests: tests/unit/test_vault.py. Reasons:
docs/decisions/0010-storage-of-secrets.md.
"""

import base64
import binascii
import os
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec
from nacl.exceptions import CryptoError
from nacl.public import PublicKey, SealedBox
from nacl.secret import SecretBox

from libs.common.errors import Corrupt, Refused, Unavailable
from libs.common.folds.secret_fold import secret_key
from libs.common.model import JobId, attempt_key
from libs.common.transport.kv import PlaceStore

KEY_BYTES: Final = 32
# Keys of replicas are derived apart from the keys of tenants.
REPLICAS: Final = b"muster-replica"
SESSIONS: Final = b"muster-session"
# The values of one secret are at so many places, and the places of old values are used again.
PLACES: Final = 8
ID_BYTES: Final = 8
# Between the place of a value and its random number, in its id.
AT: Final = "-"
# A value of this age that no fact names was left behind, by a gateway that died for example.
ABANDONED_NS: Final = 3_600_000_000_000


class _Sealed(msgspec.Struct, array_like=True):
    tenant: str
    name: str
    value: str
    value_id: str = ""
    stored_ns: int = 0


class Vault:
    """The secrets in the bucket `store`.

    Its methods raise Refused if no key file is configured, and Unavailable if the bucket does not
    answer.
    """

    def __init__(self, key_file: str, store: PlaceStore) -> None:
        self.key_file = key_file
        self.store = store
        self._session_key = b""

    async def put(self, tenant: str, name: str, value: str) -> None:
        """Store a value without an id."""
        await self.store.put(_place(tenant, name, ""), self._sealed(_Sealed(tenant, name, value)))

    async def add(self, tenant: str, name: str, value: str, current: str, now_ns: int) -> str:
        """Store a further value and return its id.

        It replaces no value that is in use: neither the one with the id `current`, nor one that
        another request stores at the moment. Raises Unavailable also if all places are in use.
        """
        used = current.partition(AT)[0]
        first = int(used) + 1 if AT in current else 0
        for number in range(first, first + PLACES):
            place = str(number % PLACES)
            key = _place(tenant, name, place)
            kept = await self.store.kept(key)
            if kept.data and (place == used or not self._is_abandoned(tenant, kept.data, now_ns)):
                continue
            value_id = place + AT + os.urandom(ID_BYTES).hex()
            sealed = self._sealed(_Sealed(tenant, name, value, value_id, now_ns))
            if await self.store.swap(key, sealed, kept.revision):
                return value_id
        raise Unavailable(
            f"the secret {name} of {tenant} was not set: other requests store values for it at its "
            f"{PLACES} places: try again in a moment"
        )

    async def get(self, tenant: str, name: str, value_id: str = "") -> str | None:
        """Return the value; None if there is none. Raises Corrupt if it was changed."""
        sealed = await self.store.get(_place(tenant, name, value_id))
        if not sealed:
            return None
        found = self._opened(tenant, name, sealed)
        return found.value if found.value_id == value_id else None

    async def remove(self, tenant: str, name: str, value_id: str = "") -> None:
        """Remove the value with this id. Raises Corrupt if its place has another secret's."""
        key = _place(tenant, name, value_id)
        kept = await self.store.kept(key)
        if kept.data and (
            not value_id or self._opened(tenant, name, kept.data).value_id == value_id
        ):
            await self.store.swap(key, b"", kept.revision)

    def _is_abandoned(self, tenant: str, sealed: bytes, now_ns: int) -> bool:
        """Return whether a value that no fact names may be replaced."""
        try:
            data = self._secret_box(tenant).decrypt(sealed)
            found = msgspec.msgpack.decode(data, type=_Sealed)
        except (CryptoError, msgspec.DecodeError):
            return False
        return now_ns - found.stored_ns >= ABANDONED_NS

    def _sealed(self, value: _Sealed) -> bytes:
        return bytes(self._secret_box(value.tenant).encrypt(msgspec.msgpack.encode(value)))

    def _opened(self, tenant: str, name: str, sealed: bytes) -> _Sealed:
        """Return what a place holds. Raises Corrupt."""
        try:
            found = msgspec.msgpack.decode(self._secret_box(tenant).decrypt(sealed), type=_Sealed)
        except (CryptoError, msgspec.DecodeError) as error:
            raise Corrupt(
                f"the secret {name} of {tenant} does not open with this vault's key: set it again"
            ) from error
        if (found.tenant, found.name) != (tenant, name):
            raise Corrupt(
                f"the secret {name} of {tenant} was put there from another place: set it again"
            )
        return found

    def replica_key(self, job_id: JobId, attempt: int) -> str:
        """Return the key of a replica's attempt, the same at every gateway with this key file.

        Raises Refused if no key file is configured.
        """
        text = attempt_key(job_id, attempt).encode()
        return blake2b(text, key=self._key(), digest_size=KEY_BYTES, person=REPLICAS).hexdigest()

    def session_key(self) -> bytes:
        """Return the key that seals sessions, the same at every gateway with this key file.

        Raises Refused if no key file is configured.
        """
        if not self._session_key:  # kept, because every request with a session needs it
            self._session_key = self._read_session_key()
        return self._session_key

    def refresh(self) -> None:
        """Read the key file again, which an administrator may have replaced.

        Raises Refused if it cannot be used; then the previous key goes on to seal sessions.
        """
        if self._session_key:
            self._session_key = self._read_session_key()

    def _read_session_key(self) -> bytes:
        return blake2b(key=self._key(), digest_size=KEY_BYTES, person=SESSIONS).digest()

    def _secret_box(self, tenant: str) -> SecretBox:
        return SecretBox(blake2b(tenant.encode(), key=self._key(), digest_size=KEY_BYTES).digest())

    def _key(self) -> bytes:
        """Return the vault's key.

        It is read when needed, because a gateway without secrets needs none.
        """
        if not self.key_file:
            raise Refused(
                "this gateway has no key for secrets, replicas and sessions: set "
                "MUSTER_VAULT_KEY_FILE to a key file"
            )
        try:
            key = base64.b64decode(Path(self.key_file).read_bytes(), validate=False)
        except (OSError, binascii.Error) as error:
            raise Refused(
                f"the vault's key {self.key_file} cannot be read: give this user permission "
                "to read it"
            ) from error
        if len(key) != KEY_BYTES:
            raise Refused(
                f"{self.key_file} is not a vault key: {KEY_BYTES} bytes in base64 are expected"
            )
        return key


def _place(tenant: str, name: str, value_id: str) -> str:
    """Return the key of a value in the bucket. No secret's name has an equals sign."""
    return secret_key(tenant, name) + (f"={value_id.partition(AT)[0]}" if value_id else "")


def sealed_to(public_key: bytes, values: dict[str, str]) -> bytes:
    """Seal the values for one agent. Raises Refused if the key is not valid."""
    try:
        return bytes(SealedBox(PublicKey(public_key)).encrypt(msgspec.msgpack.encode(values)))
    except (CryptoError, TypeError, ValueError) as error:
        raise Refused("the question holds no X25519 public key") from error
