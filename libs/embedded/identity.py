"""One nkey per process and the first API key. Seeds lie in files of mode 0600, made once and kept.

A seed never leaves its file: the server's configuration holds public keys, the gateway's file the
SHA-256 of API keys, and the clear API key only the local profile.
"""

import base64
import hashlib
import os
import secrets
import tempfile
from pathlib import Path
from typing import Final

import nkeys

from libs.common.errors import Corrupt

SEED_BYTES: Final = 32
API_KEY_BYTES: Final = 32
VAULT_KEY_BYTES: Final = 32
API_KEY_PREFIX: Final = "mk_"


def seed_file(keys: Path, name: str) -> Path:
    return keys / f"{name}.seed"


def api_keys_file(keys: Path) -> Path:
    """What the gateway reads as MUSTER_API_KEYS_FILE."""
    return keys / "api_keys"


def public_key(keys: Path, name: str) -> str:
    """The process's public key; its seed is made when there is none.

    Raises Corrupt for a file that holds no seed.
    """
    path = seed_file(keys, name)
    if not path.exists():
        seed = nkeys.encode_seed(os.urandom(SEED_BYTES), nkeys.PREFIX_BYTE_USER)  # type: ignore[no-untyped-call]
        write_private(path, seed.decode())
    return _public(path)


def public_file(keys: Path, name: str) -> Path:
    """The file with a process's public key, for processes that check what that one signed."""
    path, key = keys / f"{name}.pub", public_key(keys, name)
    if not path.exists() or path.read_text().strip() != key:
        write_private(path, key)
    return path


def _public(path: Path) -> str:
    try:
        pair = nkeys.from_seed(bytearray(path.read_bytes().strip()))  # type: ignore[no-untyped-call]
        return str(pair.public_key.decode())
    except OSError as error:
        raise Corrupt(
            f"the key {path} cannot be read ({error.strerror}): give this user the right to read it"
        ) from error
    except (nkeys.NkeysError, ValueError) as error:
        raise Corrupt(
            f"{path} holds no nkey seed: remove it, a new one is made at the next start"
        ) from error


def api_key(keys: Path, known: str) -> str:
    """`known` (from the profile) when the gateway accepts it, else a new key, added to what the
    gateway accepts.
    """
    path = api_keys_file(keys)
    accepted = path.read_text().splitlines() if path.exists() else []
    return known if known and digest(known) in accepted else new_api_key(keys)


def vault_key_file(keys: Path) -> Path:
    """What the gateways read as MUSTER_VAULT_KEY_FILE; made once, and kept: what is sealed under it
    opens with nothing else.
    """
    path = keys / "vault.key"
    if not path.exists():
        write_private(path, base64.b64encode(os.urandom(VAULT_KEY_BYTES)).decode())
    return path


def new_api_key(keys: Path, only: bool = False) -> str:
    """An administrator's key, added to what the gateway accepts; with `only` nothing else of this
    file counts any more.
    """
    path = api_keys_file(keys)
    accepted = path.read_text().splitlines() if path.exists() and not only else []
    key = API_KEY_PREFIX + secrets.token_urlsafe(API_KEY_BYTES)
    write_private(path, "\n".join([*accepted, digest(key)]))
    return key


def digest(key: str) -> str:
    """How an API key is stored: SHA-256 in hexadecimal (the key is random, so a slow hash would
    protect nothing).
    """
    return hashlib.sha256(key.encode()).hexdigest()


def write_private(path: Path, text: str) -> None:
    """Whole or not at all, and never readable by others (mode 0600), not even for a moment."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w") as file:
        file.write(text.rstrip("\n") + "\n")
        file.flush()
        os.fsync(file.fileno())
    Path(temporary).replace(path)
