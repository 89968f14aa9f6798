"""Tenants' secrets at rest: sealed with one derived key per tenant, under a key that only the
gateways' host has. The keys of replicas and of sessions are derived from it too, and stored
nowhere.

Without the vault's key file the contents of the bucket SECRETS cannot be read. `Vault.get` notices
a value that was moved to another tenant or another name. Tests: tests/unit/test_vault.py. Reasons:
docs/decisions/0010-storage-of-secrets.md.
"""

import base64
import binascii
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec
from nacl.exceptions import CryptoError
from nacl.public import PublicKey, SealedBox
from nacl.secret import SecretBox

from libs.common.errors import Corrupt, Refused
from libs.common.folds.secret_fold import secret_key
from libs.common.model import JobId, attempt_key
from libs.common.transport.kv import OutputStore

KEY_BYTES: Final = 32
# Keys of replicas are derived apart from the keys of tenants.
REPLICAS: Final = b"muster-replica"
SESSIONS: Final = b"muster-session"


class _Sealed(msgspec.Struct, array_like=True):
    tenant: str
    name: str
    value: str
    value_id: str = ""


class Vault:
    """The secrets in the bucket `store`.

    Its methods raise Refused if no key file is configured, and Unavailable if the bucket does not
    answer.
    """

    def __init__(self, key_file: str, store: OutputStore) -> None:
        self.key_file = key_file
        self.store = store
        self._session_key = b""

    async def put(self, tenant: str, name: str, value: str, value_id: str = "") -> None:
        """Store a value. Values with different ids do not replace each other."""
        sealed = self._secret_box(tenant).encrypt(
            msgspec.msgpack.encode(_Sealed(tenant, name, value, value_id))
        )
        await self.store.put(_place(tenant, name, value_id), bytes(sealed))

    async def get(self, tenant: str, name: str, value_id: str = "") -> str | None:
        """Return the value; None if there is none. Raises Corrupt if it was changed."""
        sealed = await self.store.get(_place(tenant, name, value_id))
        if not sealed:
            return None
        try:
            found = msgspec.msgpack.decode(self._secret_box(tenant).decrypt(sealed), type=_Sealed)
        except (CryptoError, msgspec.DecodeError) as error:
            raise Corrupt(
                f"the secret {name} of {tenant} does not open with this vault's key: set it again"
            ) from error
        if (found.tenant, found.name, found.value_id) != (tenant, name, value_id):
            raise Corrupt(
                f"the secret {name} of {tenant} was put there from another place: set it again"
            )
        return found.value

    async def remove(self, tenant: str, name: str, value_id: str = "") -> None:
        await self.store.put(_place(tenant, name, value_id), b"")

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
    return secret_key(tenant, name) + (f"={value_id}" if value_id else "")


def sealed_to(public_key: bytes, values: dict[str, str]) -> bytes:
    """Seal the values for one agent. Raises Refused if the key is not valid."""
    try:
        return bytes(SealedBox(PublicKey(public_key)).encrypt(msgspec.msgpack.encode(values)))
    except (CryptoError, TypeError, ValueError) as error:
        raise Refused("the question holds no X25519 public key") from error
