"""The commands `python -m services.audit backup`, `restore` and `check-backup`.

`muster backup` and `muster restore` start them. docs/howto/back-up.md describes their use.
"""

import argparse
import asyncio
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from libs.common.errors import MusterError, Refused, Unavailable
from libs.common.quantities import counted
from libs.common.settings.settings import Settings
from libs.common.state.cluster import Cluster
from libs.common.transport import connection_nats
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.copies_nats import StreamCopies
from libs.common.transport.log_jetstream import JetStreamLog
from libs.embedded import permissions, shape
from services.audit.backup import contents, sealing
from services.audit.backup.backing_up import BackingUp, Source
from services.audit.backup.building import KEYS, SHAPE, Building, read_whole
from services.audit.backup.contents import FILE_BYTES_MAX
from services.audit.backup.manifest import Manifest
from services.audit.backup.places import Place, place_of

CONNECT_S: Final = 10.0
MIB: Final = 1 << 20


def add_to(verbs: Any) -> None:  # noqa: ANN401 - argparse names no type for it
    """Add the commands to the parser of the archive's commands."""
    backup = _verb(verbs, "backup", _backup)
    backup.add_argument("--state", type=Path, required=True)
    _verb(verbs, "check-backup", _check)
    restore = _verb(verbs, "restore", _restore)
    restore.add_argument("--state", type=Path, required=True)
    restore.add_argument("--leases-ended", action="store_true")
    key = verbs.add_parser("backup-key")
    key.add_argument("file", type=Path)
    key.set_defaults(run=_new_key)


def _verb(verbs: Any, name: str, run: Any) -> argparse.ArgumentParser:  # noqa: ANN401
    parser: argparse.ArgumentParser = verbs.add_parser(name)
    parser.add_argument("place")
    parser.add_argument("--key-file", type=Path, required=True)
    parser.set_defaults(run=lambda settings, options: asyncio.run(_closing(run, settings, options)))
    return parser


async def _closing(run: Any, settings: Settings, options: argparse.Namespace) -> int:  # noqa: ANN401
    key, place = sealing.read_key(options.key_file), place_of(options.place)
    try:
        code: int = await run(settings, options, place, key)
        return code
    finally:
        await place.close()


def _new_key(settings: Settings, options: argparse.Namespace) -> int:
    sealing.new_key(options.file)
    print(
        f"created {options.file}: keep a copy of it away from this machine; without it no backup "
        "can be restored"
    )
    return 0


async def _backup(settings: Settings, options: argparse.Namespace, place: Place, key: bytes) -> int:
    """Make one backup of the cluster whose state directory is given."""
    began = time.monotonic()
    state: Path = options.state
    _check_outside(options.place, state)
    client = await _connected(settings)
    try:
        source = Source(
            log=JetStreamLog(client),
            bus=NatsBus(client),
            copies=StreamCopies(client),
            files=lambda: files_of(state),
            cluster_id=settings.cluster_id,
            stop_lease_ms=settings.stop_lease_ms,
        )
        at = datetime.now(UTC).isoformat(timespec="seconds")
        backing_up = BackingUp(source, place, key, options.place, at)
        manifest = await backing_up.run()
    finally:
        await client.close()
    print(
        f"backup {manifest.number} of {manifest.cluster_id} is in {options.place}: consistent at "
        f"commit {manifest.seq}, {_mib(backing_up.written_bytes)} written and read back in "
        f"{time.monotonic() - began:.1f} s"
    )
    return 0


async def _connected(settings: Settings) -> connection_nats.Client:
    try:
        return await connection_nats.connect_as(settings, permissions.BACKUP, within_s=CONNECT_S)
    except Unavailable as error:
        raise Unavailable(
            f"{error}. A backup reads a running cluster: start it with `muster up`. A cluster that "
            "an earlier version started does not know the key of backups: restart it once"
        ) from error


def _check_outside(place: str, state: Path) -> None:
    """Refuse a directory inside the state: it would be lost together with the state."""
    if "://" not in place and Path(place).resolve().is_relative_to(state.resolve()):
        raise Refused(
            f"{place} is inside the state directory {state}, and would be lost with it: choose a "
            "directory on another disk, or s3://bucket/prefix"
        )


def files_of(state: Path) -> dict[str, bytes]:
    """Return the files that a restored cluster needs: its shape, and all keys and certificates.

    Raises Refused for a directory without a cluster.
    """
    if shape.load(state) is None:
        raise Refused(f"{state} is not the state of a cluster: name it with --state")
    paths = [state / SHAPE, *sorted((state / KEYS).iterdir())]
    try:
        found = {
            str(path.relative_to(state)): path.read_bytes()
            for path in paths
            if path.is_file() and not path.name.startswith(".")
        }
    except OSError as error:
        raise Refused(
            f"{error.filename} cannot be read ({error.strerror}): run the command as the user who "
            "started the cluster"
        ) from error
    if sum(map(len, found.values())) > FILE_BYTES_MAX:
        raise Refused(
            f"the keys in {state / KEYS} are over {FILE_BYTES_MAX >> 20} MiB: remove what is no key"
        )
    return found


async def _check(settings: Settings, options: argparse.Namespace, place: Place, key: bytes) -> int:
    """Read a whole backup: every object, the chain, and the fold of all commits."""
    found = await contents.opened(place, key, options.place)
    read = await read_whole(found)
    print(_words(found.manifest, read.cluster, options.place))
    return 0


async def _restore(
    settings: Settings, options: argparse.Namespace, place: Place, key: bytes
) -> int:
    found = await contents.opened(place, key, options.place)
    building = Building(
        found,
        state=options.state,
        stop_lease_ms=settings.stop_lease_ms,
        leases_ended=options.leases_ended,
        now_ns=time.time_ns(),
        say=_say,
        audit_url=settings.audit_url,
    )
    try:
        cluster = await building.run()
    except MusterError as error:
        raise type(error)(f"{error} (nothing was restored to {options.state})") from error
    archive = "; its archive is in the database of MUSTER_AUDIT_URL" if settings.audit_url else ""
    wait = (
        "jobs start again once every node has registered or its lease has ended"
        if options.leases_ended
        else f"jobs start again {building.extension_ms // 1_000} s later, because nodes may hold "
        "the long lease of a planned stop"
    )
    print(
        f"restored {options.place} to {options.state}: commit {found.manifest.seq} of "
        f"{found.manifest.at}, life {cluster.life} of {found.manifest.cluster_id}{archive}\nstart "
        f"it with `muster up --state {options.state}`; {wait}"
    )
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _words(manifest: Manifest, cluster: Cluster, place: str) -> str:
    size = sum(segment.sealed_bytes for segment in manifest.segments)
    return (
        f"{place} is whole: backup {manifest.number} of {manifest.cluster_id} at commit "
        f"{manifest.seq} ({manifest.at}), {counted(len(cluster.jobs), 'job')} and "
        f"{counted(len(cluster.nodes), 'node')}, {_mib(size)}, chain {manifest.chain}"
    )


def _mib(size: int) -> str:
    return f"{size / MIB:.1f} MiB"
