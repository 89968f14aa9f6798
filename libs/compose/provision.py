"""Fills the volumes: makes what is missing in the authority's folder, then copies to each container
what `containers.py` gives it.

The authority's volume is mounted by nothing that goes on running. A second run makes nothing new
and copies the same.
"""

import json
import os
import secrets
from pathlib import Path
from typing import Final

import msgspec

from libs.common.errors import Refused
from libs.common.settings.settings import Settings
from libs.common.transport.connection_nats import TLS_NAME
from libs.compose import containers as c
from libs.compose.containers import Given
from libs.compose.server import TOLD, Told
from libs.embedded import certificates, identity, nats_config, permissions

PASSWORD_BYTES: Final = 32
ROUTES: Final = "routes.password"
ADMIN: Final = "admin.key"


def provision(root: Path) -> bool:
    """Whether anything was new.

    `root` holds one folder per volume, named as the container. Raises Refused when one is missing.
    """
    folder = root / c.AUTHORITY
    new = not (folder / ADMIN).exists()
    try:
        public_keys = _secrets(folder)
        for each in c.given():
            _give(root, folder, each)
        for name in c.SERVERS:
            told = Told(_server(name, (folder / ROUTES).read_text().strip()), public_keys)
            _put(root / name / c.IDENTITY / TOLD, msgspec.json.encode(told).decode(), c.MUSTER_UID)
        profile = {"gateway": c.GATEWAY_URL, "key": (folder / ADMIN).read_text().strip()}
        _put(root / c.CLI / "profile.json", json.dumps(profile), c.MUSTER_UID)
    except OSError as error:
        raise Refused(
            f"{error.filename} cannot be written ({error.strerror}): is its volume mounted, "
            "and this the root user?"
        ) from error
    return new


def reset_key(root: Path, only: bool) -> None:
    """A new administrator's key, for the gateways and the profile; with `only` no other key of the
    host counts any more.
    """
    folder = root / c.AUTHORITY
    identity.write_private(folder / ADMIN, identity.new_api_key(folder / "keys", only))
    provision(root)


def _secrets(folder: Path) -> dict[str, str]:
    """Everything that is secret, in the authority's folder; the processes' public keys."""
    keys = folder / "keys"
    public_keys = {name: identity.public_key(keys, name) for name in permissions.names(c.FLEET)}
    identity.public_file(keys, permissions.TRIMMER)
    identity.public_key(keys, c.HEADS)
    identity.vault_key_file(keys)
    name = c.AUTHORITY_FILE.removesuffix(".pem")
    certificates.authority(folder, name)
    for host in (*c.SERVERS, c.POSTGRES, c.GATEWAY):
        # A nats-server that meets another by its address expects the name of whichever it was told
        # of first.
        certificates.server(
            folder, host, name, [*(c.SERVERS if host in c.SERVERS else [host]), TLS_NAME]
        )
    _password(folder / ROUTES)
    password = _password(folder / c.PASSWORD)
    identity.write_private(folder / c.PGPASS, f"{c.POSTGRES}:*:*:*:{password}")
    known = (folder / ADMIN).read_text().strip() if (folder / ADMIN).exists() else ""
    identity.write_private(folder / ADMIN, identity.api_key(keys, known))
    return public_keys


def _password(path: Path) -> str:
    if not path.exists():
        identity.write_private(path, secrets.token_hex(PASSWORD_BYTES))
    return path.read_text().strip()


def _server(name: str, password: str) -> nats_config.Server:
    """One nats-server: as the embedded one, but for its addresses and TLS on both of its ports."""
    folder = f"{c.STATE}/{c.IDENTITY}"
    return nats_config.Server(
        name=name,
        port=c.CLIENT_PORT,
        store=f"{c.STATE}/jetstream",
        log_bytes=Settings().stream_bytes,
        peers=nats_config.Peers(tuple(f"{each}:{c.ROUTE_PORT}" for each in c.SERVERS), password),
        route_address=f"{name}:{c.ROUTE_PORT}",
        listen="0.0.0.0",  # nosec B104
        certificate=f"{folder}/server.pem",
        key=f"{folder}/server.key",
        authority=f"{folder}/{c.AUTHORITY_FILE}",
        monitor_port=c.MONITOR_PORT,
    )


def _give(root: Path, authority: Path, given: Given) -> None:
    for name, source in given.files.items():
        _put(
            root / given.container / c.IDENTITY / name, (authority / source).read_text(), given.uid
        )


def _put(path: Path, text: str, uid: int) -> None:
    """Its owner's, and nobody else's.

    The volume itself must be there: a folder made here would be lost with this container.
    """
    volume = path.parent.parent if path.parent.name == c.IDENTITY else path.parent
    if not volume.is_dir():
        raise FileNotFoundError(2, "no such directory", str(volume))
    identity.write_private(path, text)
    for each in (volume, path.parent, path):
        os.chown(each, uid, uid)
