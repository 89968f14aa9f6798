"""Fills the volumes: creates what is missing in the authority's folder, then copies the files.

`containers.py` lists the files of each container. No running container mounts the authority's
volume. A second run creates nothing new and copies the same files.
"""

import json
import os
import secrets
from pathlib import Path
from typing import Final

import msgspec

from libs.common.errors import Refused
from libs.common.safety.following import TLS_NAME
from libs.common.settings.settings import Settings
from libs.compose import containers as c
from libs.compose.containers import Given
from libs.compose.server import TOLD, ServerIdentity
from libs.embedded import certificates, identity, nats_config, permissions

PASSWORD_BYTES: Final = 32
ROUTES: Final = "routes.password"
ADMIN: Final = "admin.key"


def provision(root: Path) -> bool:
    """Fill the volumes. Return whether this was the first time.

    `root` holds one folder per volume, named like its container. Raises Refused if one is missing.
    """
    folder = root / c.AUTHORITY
    new = not (folder / ADMIN).exists()
    try:
        public_keys = _secrets(folder)
        for each in c.given():
            _give(root, folder, each)
        for name in c.ALL_SERVERS:
            server_identity = ServerIdentity(
                _server(name, (folder / ROUTES).read_text().strip()), public_keys
            )
            _put(
                root / name / c.IDENTITY / TOLD,
                msgspec.json.encode(server_identity).decode(),
                c.MUSTER_UID,
            )
        profile = {"gateway": c.GATEWAY_URL, "key": (folder / ADMIN).read_text().strip()}
        _put(root / c.CLI / "profile.json", json.dumps(profile), c.MUSTER_UID)
    except OSError as error:
        raise Refused(
            f"{error.filename} cannot be written ({error.strerror}): mount its volume, and run "
            "this as root"
        ) from error
    return new


def reset_key(root: Path, only: bool) -> None:
    """Create a new administrator's key for the gateways and the profile.

    `only`: all other keys of this host become void.
    """
    folder = root / c.AUTHORITY
    identity.write_private(folder / ADMIN, identity.new_api_key(folder / "keys", only))
    provision(root)


def _secrets(folder: Path) -> dict[str, str]:
    """Create all secrets in the authority's folder. Return the public keys of the processes."""
    keys = folder / "keys"
    public_keys = {name: identity.public_key(keys, name) for name in permissions.names(c.FLEET)}
    identity.public_file(keys, permissions.TRIMMER)
    identity.public_key(keys, c.HEADS)
    identity.vault_key_file(keys)
    name = c.AUTHORITY_FILE.removesuffix(".pem")
    certificates.authority(folder, name)
    for host in (*c.ALL_SERVERS, c.POSTGRES, c.GATEWAY):
        # A nats-server that connects to a peer by address expects the name of the first peer in its
        # configuration, so each certificate has the names of all.
        certificates.server(
            folder, host, name, [*(c.ALL_SERVERS if host in c.ALL_SERVERS else [host]), TLS_NAME]
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
    """Return one nats-server: the embedded one with other addresses, and TLS on both ports.

    The first three know only each other, because a cluster begins with as many servers as a server
    knows. The others connect to them.
    """
    known = c.SERVERS if name in c.SERVERS else c.ALL_SERVERS
    folder = f"{c.STATE}/{c.IDENTITY}"
    return nats_config.Server(
        name=name,
        port=c.CLIENT_PORT,
        store=f"{c.STATE}/jetstream",
        log_bytes=Settings().stream_bytes,
        peers=nats_config.Peers(tuple(f"{each}:{c.ROUTE_PORT}" for each in known), password),
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
    """Write a file that only its owner can read.

    The volume must exist: a folder created here would be lost with this container.
    """
    volume = path.parent.parent if path.parent.name == c.IDENTITY else path.parent
    if not volume.is_dir():
        raise FileNotFoundError(2, "no such directory", str(volume))
    identity.write_private(path, text)
    for each in (volume, path.parent, path):
        os.chown(each, uid, uid)
