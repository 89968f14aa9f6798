"""Builds the state directory of a restored cluster from a backup.

The whole backup is read and folded first, so nothing is written from a damaged one. Then the log is
written again with the same sequences into a server of this process's own, the archive is made from
the commits (`archiving.py`), and one more commit begins the cluster's next life. The directory gets
its name last: a killed restore leaves no state directory behind. Tests:
tests/integration/test_backup.py.
"""

import json
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec
import nkeys

from libs.common import facts as f
from libs.common import fold, reading, subjects
from libs.common.errors import Corrupt, Refused, Unavailable
from libs.common.quantities import counted
from libs.common.safety.folder_walk import remove_tree
from libs.common.state.cluster import Cluster
from libs.common.transport import connection_nats, log_jetstream, snapshot, snapshot_store
from libs.common.transport.copies_nats import StreamCopies
from libs.common.transport.log import Entry
from libs.common.transport.objects_nats import NatsObjects
from libs.common.transport.signed_snapshots import SignedSnapshots
from libs.embedded import identity, permissions, servers, shape
from libs.embedded.identity import write_private
from libs.embedded.living import die_with_parent
from libs.embedded.nats_config import BESIDE_LOG_BYTES, LOOPBACK
from libs.embedded.permissions import CORE_ACCOUNT
from services.audit.backup.archiving import Archiving
from services.audit.backup.contents import Contents
from services.audit.chain.heads import decode as decode_head
from services.audit.chain.notary import Heads

SERVER: Final = "restoring"
STOP_S: Final = 60.0
# Above this part of its bound the log is thinned while it is written, as the trimmer does.
FULL_PART: Final = 0.5
RESTORE_ID_BYTES: Final = 8
KEYS: Final = "keys"
SHAPE: Final = "cluster.json"

Say = Callable[[str], None]


class Read(msgspec.Struct):
    """The state of the whole backup, folded, and its number of messages beside the log.

    `stop_lease_ms` is the longest lease of a planned stop that its log records.
    """

    cluster: Cluster
    messages: int = 0
    stop_lease_ms: int = 0


async def read_whole(contents: Contents) -> Read:
    """Read every object of a backup and fold its commits.

    Raises Corrupt for a damaged backup, Refused for another key, TooNew, Unavailable.
    """
    found = Read(Cluster())
    async for batch in contents.commits():
        for entry in batch:
            commit = _fold(found.cluster, entry)
            stops = [each.duration_ms for each in commit.facts if isinstance(each, f.LeaseExtended)]
            found.stop_lease_ms = max(found.stop_lease_ms, *stops, 0)
    for bucket in contents.manifest.buckets:
        async for messages in contents.messages(bucket):
            found.messages += len(messages)
    await contents.files()
    return found


def _fold(cluster: Cluster, entry: Entry) -> f.Commit:
    """Fold one commit and return it."""
    commit = reading.read(cluster.writers, entry.subject, entry.data)
    fold.apply_entry(cluster, entry.seq, entry.subject, commit)
    return commit


class Building:
    """One restore of `contents` to `state`.

    `stop_lease_ms` is the long lease of a planned stop by this process's settings, which need not
    be those of the lost cluster. So the longest one that the backup names counts too. `run` sets
    `extension_ms` to the result; 0 if the operator says that such leases have ended. `audit_url`:
    the database of the archive; empty: a file in the state directory.
    """

    def __init__(
        self,
        contents: Contents,
        state: Path,
        stop_lease_ms: int,
        leases_ended: bool,
        now_ns: int,
        say: Say,
        audit_url: str = "",
    ) -> None:
        self.contents = contents
        self.state = state.resolve()
        self.stop_lease_ms = stop_lease_ms
        self.leases_ended = leases_ended
        self.extension_ms = 0
        self.now_ns = now_ns
        self.say = say
        self.audit_url = audit_url
        self.cluster = Cluster()
        self.written_bytes = 0

    async def run(self) -> Cluster:
        """Build the directory and return the state that a reader of its log has.

        Raises Refused for a directory that is not empty or an archive of another history, Corrupt
        before anything is written.
        """
        check_empty(self.state)
        archive = Archiving(self.audit_url, self.contents.manifest)
        try:
            self.say("checking the backup")
            read = await read_whole(self.contents)
            if not self.leases_ended:
                recorded_ms = (self.contents.manifest.stop_lease_ms, read.stop_lease_ms)
                self.extension_ms = max(self.stop_lease_ms, *recorded_ms)
            folder = self._begin()
            try:
                await self._build(folder, read, archive)
                _finish(folder, self.state)
            finally:
                remove_tree(folder)
        finally:
            archive.close()
        return self.cluster

    def _begin(self) -> Path:
        """Return a new directory beside the state directory; remove that of a killed restore."""
        folder = self.state.with_name(f".{self.state.name}.restoring")
        try:
            remove_tree(folder)
            folder.mkdir(parents=True, mode=0o700)
        except OSError as error:
            raise Refused(
                f"{folder} cannot be written ({error.strerror}): choose another directory with "
                "--state"
            ) from error
        return folder

    async def _build(self, folder: Path, read: Read, archive: Archiving) -> None:
        for path, data in (await self.contents.files()).items():
            _write_file(folder, path, data)
        known = shape.load(folder)
        if known is None:
            raise Corrupt(f"{self.contents.name} has no {SHAPE}: use another copy of this backup")
        self.say(f"writing {counted(read.cluster.seq, 'commit')}")
        server = _Server(folder, known.log_bytes)
        try:
            await self._fill(folder, server, known.log_bytes, archive)
        finally:
            server.stop()
        os.sync()

    async def _fill(
        self, folder: Path, server: "_Server", log_bytes: int, archive: Archiving
    ) -> None:
        client = await connection_nats.connect([server.url], SERVER, server.seed)
        try:
            await log_jetstream.create_stream(client, 1, log_bytes)
            copies = StreamCopies(client)
            archive.begin(folder)
            log = log_jetstream.JetStreamLog(client)
            async for batch in self.contents.commits():
                await self._append(log, copies, log_bytes, batch)
                archive.append(batch)
            archive.check()
            entry = restored_entry(
                self.cluster,
                self.contents.manifest.chain,
                secrets.token_hex(RESTORE_ID_BYTES),
                extension_ms=self.extension_ms,
                now_ns=self.now_ns,
            )
            await self._append(log, copies, log_bytes, [entry])
            await self._fill_buckets(folder, copies)
            seed = identity.seed_file(folder / KEYS, permissions.TRIMMER).read_bytes().strip()
            snapshots = SignedSnapshots(NatsObjects(client), seed, "")
            await snapshots.put(snapshot_store.BASE_OBJECT, snapshot.encode(self.cluster))
        finally:
            await client.close()

    async def _append(
        self,
        log: log_jetstream.JetStreamLog,
        copies: StreamCopies,
        log_bytes: int,
        batch: list[Entry],
    ) -> None:
        """Append commits at their own sequences, and keep the log within its bound."""
        last = await copies.write(
            subjects.STREAM, [(entry.subject, entry.data) for entry in batch], batch[0].seq - 1
        )
        if last != batch[-1].seq:
            raise Unavailable(
                f"the log stored commit {batch[-1].seq} as {last}: repeat the restore"
            )
        for entry in batch:
            _fold(self.cluster, entry)
            self.written_bytes += len(entry.data) + len(entry.subject)
        if self.written_bytes > log_bytes * FULL_PART:
            await log.purge({name: mark.seq for name, mark in self.cluster.writers.items()})
            self.written_bytes = 0

    async def _fill_buckets(self, folder: Path, copies: StreamCopies) -> None:
        for bucket in self.contents.manifest.buckets:
            await copies.create(bucket.config, 1)
            before = 0
            async for batch in self.contents.messages(bucket):
                if bucket.stream == subjects.HEADS_STREAM:
                    batch = _heads_upto(batch, self.contents.manifest.seq)
                    _keep_heads(folder, batch)
                before = await copies.write(
                    bucket.stream, [(entry.subject, entry.data) for entry in batch], before
                )


def restored_entry(
    cluster: Cluster, backup: str, restore_id: str, extension_ms: int, now_ns: int
) -> Entry:
    """Return the commit that begins the cluster's next life, behind the state.

    `restore_id` must differ between any two restores, also of the same backup. With `extension_ms`
    nodes may still hold the long lease of a planned stop that the backup does not know; 0: none
    holds one, whatever the backup says. Raises Refused if the cluster had no scheduler yet.
    """
    mark = cluster.writers.get(subjects.SCHEDULER)
    if mark is None:
        raise Refused(
            "the backup holds no scheduler's commit, so there is nothing to restore: start a new "
            "cluster with `muster up`"
        )
    restored = f.ClusterRestored(life=cluster.life + 1, backup=backup, restore_id=restore_id)
    held = f.LeaseExtended(duration_ms=extension_ms)
    commit = f.Commit(
        version=f.VERSION,
        min_reader=f.VERSION,
        writer=subjects.SCHEDULER,
        number=f.next_number(mark.number),
        epoch=cluster.epoch,
        at_ns=max(now_ns, mark.at_ns),
        seen=cluster.seq,
        facts=(held, restored),
    )
    return Entry(cluster.seq + 1, subjects.SCHEDULER, f.encode(commit))


def check_empty(state: Path) -> None:
    """Raise Refused if the directory holds anything."""
    try:
        found = next(state.iterdir(), None) if state.exists() else None
    except OSError as error:
        raise Refused(
            f"{state} cannot be read ({error.strerror}): choose another directory with --state"
        ) from error
    if found is not None:
        raise Refused(
            f"{state} is not empty (it holds {found.name}): a restore begins a new state "
            "directory; choose another with --state, or remove this one with `muster clean`"
        )


def _write_file(folder: Path, path: str, data: bytes) -> None:
    """Write one file of the backup. Raises Corrupt for a path outside of the directory."""
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts or not parts.parts:
        raise Corrupt(f"the backup names the file {path!r}, which is no file of a cluster")
    write_private(folder / parts, data.decode())


def _heads_upto(batch: list[Entry], seq: int) -> list[Entry]:
    """Return the signed heads of commits up to `seq`: those of later ones are not restored."""
    return [entry for entry in batch if decode_head(entry.data).sequence <= seq]


def _keep_heads(folder: Path, batch: list[Entry]) -> None:
    """Write signed heads to audit's files, so that its notary goes on from the newest."""
    heads = Heads(folder / "services" / permissions.AUDIT)
    for entry in batch:
        heads.append(decode_head(entry.data))


def _finish(folder: Path, state: Path) -> None:
    """Give the directory its name. An empty directory of that name is replaced."""
    try:
        state.parent.mkdir(parents=True, exist_ok=True)
        if state.exists():
            state.rmdir()
        folder.rename(state)
    except OSError as error:
        raise Refused(
            f"{state} cannot be written ({error.strerror}): choose another directory with --state"
        ) from error


class _Server:
    """A nats-server on loopback for this restore: its only user is this process."""

    def __init__(self, folder: Path, log_bytes: int) -> None:
        seed = nkeys.encode_seed(os.urandom(identity.SEED_BYTES), nkeys.PREFIX_BYTE_USER)  # type: ignore[no-untyped-call]
        self.seed = bytes(seed)
        pair = nkeys.from_seed(bytearray(self.seed))  # type: ignore[no-untyped-call]
        (port,) = servers.free_ports(1)
        self.url = f"nats://{LOOPBACK}:{port}"
        self.work = Path(tempfile.mkdtemp(prefix=".restoring.", dir=folder))
        users = [{"nkey": pair.public_key.decode()}]
        config = {
            "server_name": SERVER,
            "host": LOOPBACK,
            "port": port,
            "max_payload": 1 << 20,
            "jetstream": {
                "store_dir": str(folder / "nats"),
                "max_file": log_bytes + BESIDE_LOG_BYTES,
            },
            "accounts": {CORE_ACCOUNT: {"jetstream": "enabled", "users": users}},
        }
        write_private(self.work / "server.conf", json.dumps(config))
        with (self.work / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [servers.binary(), "-c", str(self.work / "server.conf")],
                env={**os.environ, **servers.environment(0)},
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent(),
            )
        try:
            servers.wait_ready(port, SERVER)
        except Unavailable:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server; it has written everything when this returns."""
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.work, ignore_errors=True)
