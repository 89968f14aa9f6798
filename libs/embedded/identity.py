"""The nkeys of the processes, the first API key and the vault key, in files of mode 0600.

Keys are created once and kept. A seed never leaves its file. The server's configuration holds
public keys, the gateway's file the SHA-256 of API keys, and only the local profile holds an API
key in clear.
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
    """Return the path of the file that gateways read as MUSTER_API_KEYS_FILE."""
    return keys / "api_keys"


def public_key(keys: Path, name: str) -> str:
    """Return a process's public key; create its seed if there is none.

    Raises Corrupt if the file holds no seed.
    """
    path = seed_file(keys, name)
    if not path.exists():
        seed = nkeys.encode_seed(os.urandom(SEED_BYTES), nkeys.PREFIX_BYTE_USER)  # type: ignore[no-untyped-call]
        write_private(path, seed.decode())
    return _public(path)


def public_file(keys: Path, name: str) -> Path:
    """Return the file with a process's public key, for processes that verify its signatures."""
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
            f"the key file {path} cannot be read ({error.strerror}): give this user the right to "
            "read it"
        ) from error
    except (nkeys.NkeysError, ValueError) as error:
        raise Corrupt(
            f"{path} holds no nkey seed: remove it, and the next start creates a new one"
        ) from error


def api_key(keys: Path, known: str) -> str:
    """Return `known`, the key of the profile, if the gateway accepts it; otherwise a new key."""
    path = api_keys_file(keys)
    accepted = path.read_text().splitlines() if path.exists() else []
    return known if known and digest(known) in accepted else new_api_key(keys)


def vault_key_file(keys: Path) -> Path:
    """Return the file that gateways read as MUSTER_VAULT_KEY_FILE; create it if there is none.

    Secrets can be decrypted with this key only, so the file must be kept.
    """
    path = keys / "vault.key"
    if not path.exists():
        write_private(path, base64.b64encode(os.urandom(VAULT_KEY_BYTES)).decode())
    return path


def new_api_key(keys: Path, only: bool = False) -> str:
    """Create an administrator's API key and add it to the keys that the gateway accepts.

    `only`: it replaces all other keys of the file.
    """
    path = api_keys_file(keys)
    accepted = path.read_text().splitlines() if path.exists() and not only else []
    key = API_KEY_PREFIX + secrets.token_urlsafe(API_KEY_BYTES)
    write_private(path, "\n".join([*accepted, digest(key)]))
    return key


def digest(key: str) -> str:
    """Return the SHA-256 of an API key in hex, as it is stored.

    The key is random, so a slow hash would protect nothing.
    """
    return hashlib.sha256(key.encode()).hexdigest()


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 0600, completely or not at all. Others can never read it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w") as file:
        file.write(text.rstrip("\n") + "\n")
        file.flush()
        os.fsync(file.fileno())
    Path(temporary).replace(path)
