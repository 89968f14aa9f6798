"""Backups and restores on a real nats-server with the permissions of a cluster, without services.

The facts are few and chosen; the drill with services and jobs is test_backup_cluster.py.
"""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from nats.aio.client import Client

from libs.common import facts as f
from libs.common import subjects as s
from libs.common.errors import Corrupt, MusterError, Refused
from libs.common.facts import AnyFact
from libs.common.process.clock import SystemClock
from libs.common.settings.settings import Settings
from libs.common.state.cluster import LIFE_EPOCHS
from libs.common.transport import snapshot_store
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.connection_nats import connect
from libs.common.transport.copies_nats import StreamCopies
from libs.common.transport.kv_nats import KvOutputs, create_buckets
from libs.common.transport.log_jetstream import JetStreamLog, create_stream
from libs.common.transport.objects_nats import NatsObjects
from libs.common.transport.signed_snapshots import SignedSnapshots
from libs.common.transport.writer import Writer
from libs.embedded import identity, plan, servers, shape
from libs.embedded.servers import Servers, start_servers
from libs.embedded.shape import Shape
from services.audit.backup import backing_up, contents
from services.audit.backup.backing_up import BackingUp, Source
from services.audit.backup.building import Building, read_whole
from services.audit.backup.commands import files_of
from services.audit.backup.manifest import Manifest
from services.audit.backup.places import CURRENT, SEGMENTS, DirectoryPlace
from services.audit.store.store import Store
from tests.given import waiting

LOG_BYTES = 64 << 20


class World:
    """A cluster's state directory with a running nats-server, and a place for backups."""

    def __init__(self, folder: Path, running: Servers) -> None:
        self.folder, self.running = folder, running
        self.state = folder / "state"
        self.place = DirectoryPlace(folder / "place")
        self.key = bytes(range(32))
        self.stop_lease_ms = 0
        self.clients: dict[str, Client] = {}

    async def client(self, name: str) -> Client:
        if name not in self.clients:
            self.clients[name] = await connect(self.running.urls, name, self.running.seed(name))
        return self.clients[name]

    async def record(self, name: str, subject: str, *facts: AnyFact) -> int:
        log = JetStreamLog(await self.client(name))
        writer = Writer(log, SystemClock(), subject, seen=lambda: 0)
        await writer.attach()
        if name == "scheduler":
            last = await log.last(subject)
            writer.epoch = last.seq if last is not None else 0
        return await writer.commit(facts)

    async def begin(self) -> None:
        scheduler = await self.client("scheduler")
        await create_stream(scheduler, 1, LOG_BYTES // 2)
        await create_buckets(scheduler, Settings())
        await self.record("scheduler", s.SCHEDULER, f.TermBegan(instance="a"))

    async def submit(self, *names: str) -> int:
        seq = 0
        for name in names:
            seq = await self.record("gateway-a", s.gateway("a"), waiting(name)[0])
        return seq

    async def backup(self, place: DirectoryPlace | None = None) -> Manifest:
        client = await self.client("backup")
        source = Source(
            log=JetStreamLog(client),
            bus=NatsBus(client),
            copies=StreamCopies(client),
            files=lambda: files_of(self.state),
            cluster_id="c",
            stop_lease_ms=self.stop_lease_ms,
        )
        made = BackingUp(source, place or self.place, self.key, "the place", "2026-01-01")
        return await made.run()

    async def contents(self) -> contents.Contents:
        return await contents.opened(self.place, self.key, "the place")

    async def restore(self, to: str = "restored") -> Path:
        state = self.folder / to
        found = await self.contents()
        await Building(found, state, 0, leases_ended=True, now_ns=1, say=lambda text: None).run()
        return state


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    state = tmp_path / "state"
    shape.save(state, Shape(cluster_id="c", log_bytes=LOG_BYTES))
    identity.public_key(state / "keys", plan.AUDIT_HEADS_KEY)
    running = start_servers(state, log_bytes=LOG_BYTES)
    found = World(tmp_path, running)
    await found.begin()
    yield found
    for client in found.clients.values():
        await client.close()
    running.stop()


def segments(world: World) -> set[str]:
    return set(os.listdir(world.place.folder / SEGMENTS))


async def test_a_backup_holds_every_commit_up_to_its_sequence(world: World) -> None:
    last = await world.submit("j1", "j2")
    manifest = await world.backup()
    assert manifest.seq == last
    read = await read_whole(await world.contents())
    assert sorted(read.cluster.jobs) == ["j1", "j2"]


async def test_a_second_backup_writes_only_what_is_new(world: World) -> None:
    await world.submit(*(f"j{number}" for number in range(20)))
    first = await world.backup()
    before = segments(world)
    await world.submit("new")
    second = await world.backup()
    assert second.log[:-1] == first.log
    assert (second.log[-1].first, second.log[-1].last) == (first.seq + 1, second.seq)
    assert len(segments(world) - before) <= 2  # the commits and the files
    assert (second.number, second.root) == (2, first.root)


async def test_a_backup_of_a_quiet_cluster_has_no_new_commits(world: World) -> None:
    await world.submit("j1")
    first = await world.backup()
    second = await world.backup()
    assert (second.seq, second.log, second.chain) == (first.seq, first.log, first.chain)


async def test_a_restored_log_has_the_same_commits_at_the_same_sequences(world: World) -> None:
    await world.submit("j1", "j2")
    bucket = KvOutputs(await world.client("gateway-a"), s.SECRET_BUCKET)
    await bucket.put("t.name", b"sealed")
    await bucket.put("t.gone", b"old")
    await bucket.put("t.gone", b"")
    manifest = await world.backup()
    state = await world.restore()
    assert sorted(os.listdir(state)) == ["cluster.json", "keys", "nats", "services"]
    port = servers.free_ports(1)[0]
    restarted = start_servers_at(state, port)
    client = await connect([f"nats://127.0.0.1:{port}"], "audit", seed_of(state, "audit"))
    gateway = await connect([f"nats://127.0.0.1:{port}"], "gateway-a", seed_of(state, "gateway-a"))
    try:
        log = JetStreamLog(client)
        assert await log.bounds() == (1, manifest.seq + 1)
        original = JetStreamLog(await world.client("audit"))
        for seq in range(1, manifest.seq + 1):
            assert await log.get(seq) == await original.get(seq)
        restored = KvOutputs(gateway, s.SECRET_BUCKET)
        assert await restored.get("t.name") == b"sealed"
        assert not await restored.get("t.gone")
        trimmer = identity.public_key(state / "keys", "trimmer")
        objects = SignedSnapshots(NatsObjects(client), seed_of(state, "audit"), trimmer)
        base = await snapshot_store.load(objects, snapshot_store.BASE_OBJECT)
        assert base is not None
        assert (base.seq, base.life, base.settling) == (manifest.seq + 1, 1, True)
        assert base.epoch == LIFE_EPOCHS
    finally:
        await client.close()
        await gateway.close()
        restarted.terminate()
        restarted.wait()
    store = Store(f"sqlite:///{state}/services/audit/audit.db", read_only=True)
    head = store.head_now()
    assert head is not None
    assert (head.seq, head.hash) == (manifest.seq, manifest.chain)
    store.close()


def seed_of(state: Path, name: str) -> bytes:
    return identity.seed_file(state / "keys", name).read_bytes().strip()


def start_servers_at(state: Path, port: int) -> "subprocess.Popen[bytes]":
    found = shape.load(state)
    assert found is not None
    plan.configure(state, msgspec.structs.replace(found, nats_port=port, nodes=1), servers.NO_NODES)
    process = subprocess.Popen(
        [servers.binary(), "-c", str(servers.config_file(state, plan.SERVER))],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    servers.wait_ready(port, plan.SERVER)
    return process


async def test_a_restore_needs_an_empty_directory(world: World) -> None:
    await world.submit("j1")
    await world.backup()
    (world.folder / "restored").mkdir()
    (world.folder / "restored" / "file").write_text("mine")
    with pytest.raises(Refused, match="is not empty"):
        await world.restore()
    assert (world.folder / "restored" / "file").read_text() == "mine"


async def test_a_changed_or_missing_object_is_named_before_anything_is_written(
    world: World,
) -> None:
    await world.submit("j1")
    manifest = await world.backup()
    for segment in manifest.segments:
        path = world.place.folder / SEGMENTS / segment.name
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(Corrupt, match=segment.name):
            await world.restore()
        path.unlink()
        with pytest.raises(Corrupt, match="is missing"):
            await world.restore()
        path.write_bytes(whole)
    assert not (world.folder / "restored").exists()
    current = world.place.folder / CURRENT
    current.write_bytes(current.read_bytes()[:-1] + b"\0\0")
    with pytest.raises(Corrupt, match="the manifest of the place"):
        await world.restore()
    assert [path.name for path in world.folder.iterdir() if "restor" in path.name] == []


async def test_another_key_is_refused(world: World) -> None:
    await world.submit("j1")
    await world.backup()
    world.key = bytes(32)
    for work in (world.restore, world.backup):
        with pytest.raises(Refused, match="sealed with the key"):
            await work()


async def test_the_place_of_another_cluster_is_refused(world: World, tmp_path: Path) -> None:
    await world.submit("j1")
    await world.backup()
    state = tmp_path / "other"
    shape.save(state, Shape(cluster_id="c", log_bytes=LOG_BYTES))
    running = start_servers(state, log_bytes=LOG_BYTES)
    other = World(tmp_path, running)
    other.state = state
    await other.begin()
    with pytest.raises(Refused, match="another cluster"):
        await other.backup()
    for client in other.clients.values():
        await client.close()
    running.stop()


async def test_a_log_that_was_put_back_is_refused(world: World) -> None:
    await world.submit("j1")
    manifest = await world.backup()
    found = await contents.current(world.place, world.key, "the place")
    assert found is not None
    entries = await (await world.contents()).entries(manifest.log[-1])
    changed = [*entries[:-1], msgspec.structs.replace(entries[-1], data=b"another")]
    forged = BackingUp.__new__(BackingUp)
    forged.place, forged.key, forged.name, forged.written_bytes = (
        world.place, world.key, "the place", 0,
    )  # fmt: skip
    segment = await forged._stored(msgspec.msgpack.encode(changed), 1, manifest.seq)
    log = (segment,)
    await forged._replace(msgspec.structs.replace(manifest, log=log), found.sealed)
    with pytest.raises(Refused, match="is not the one"):
        await world.backup()


async def test_two_backups_at_once_do_not_mix(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.submit("j1")
    stored = BackingUp._commits
    turns, begun = iter([True]), []

    async def late(self: BackingUp, *given: object) -> object:
        if next(turns, False):
            begun.append(await world.backup())
        return await stored(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(BackingUp, "_commits", late)
    with pytest.raises(Refused, match="another backup"):
        await world.backup()
    assert (await read_whole(await world.contents())).cluster.seq == begun[0].seq


async def test_secrets_that_change_meanwhile_move_the_backup_to_a_later_sequence(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.submit("j1")
    read = BackingUp._bucket
    changes = iter([True])

    async def changing(self: BackingUp, *given: object) -> object:
        if next(changes, False):
            secret = f.SecretSet(tenant="default", name="n")  # type: ignore[arg-type]
            await world.record("gateway-a", s.gateway("a"), secret)
        return await read(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(BackingUp, "_bucket", changing)
    manifest = await world.backup()
    cluster = (await read_whole(await world.contents())).cluster
    assert cluster.seq == manifest.seq == 3
    assert list(cluster.secrets) == ["default.n"]


async def test_a_killed_backup_leaves_the_last_one_whole(world: World) -> None:
    """A backup is ended by SIGKILL after each of its writes in turn."""
    await world.submit("j1")
    first = await world.backup()
    await world.submit("j2")
    (world.folder / "key").write_text("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")
    (world.folder / "key").chmod(0o600)
    for writes in (1, 2, 3):
        code = _killed_backup(world, writes)
        assert code in (-9, 0)
        read = await read_whole(await world.contents())
        assert read.cluster.seq >= first.seq
    assert (await world.backup()).seq > first.seq


KILLED = """
import os, sys
from services.audit.backup import places
left, write = [int(sys.argv[1])], places._write
def counted(path, data):
    left[0] -= 1
    if left[0] <= 0:
        path.parent.mkdir(exist_ok=True)
        (path.parent / '.writing.half').write_bytes(data[:len(data) // 2])
        os.kill(os.getpid(), 9)
    write(path, data)
places._write = counted
from services.audit.commands import call
sys.exit(call(sys.argv[2:]))
"""


def _killed_backup(world: World, writes: int) -> int:
    words = ["backup", str(world.place.folder), "--key-file", str(world.folder / "key")]
    told = {
        "MUSTER_NATS": world.running.urls[0],
        "MUSTER_NKEY_SEED_FILE": str(world.state / "keys" / "backup.seed"),
        "MUSTER_CLUSTER_ID": "c",
    }
    line = [sys.executable, "-c", KILLED, str(writes), *words, "--state", str(world.state)]
    return subprocess.run(line, env={**os.environ, **told}, check=False).returncode


async def test_objects_that_nothing_names_are_removed_when_they_are_old(world: World) -> None:
    await world.submit("j1")
    await world.backup()
    left = world.place.folder / SEGMENTS / "left"
    left.write_bytes(b"of a killed backup")
    young = world.place.folder / SEGMENTS / "young"
    young.write_bytes(b"of a backup that runs")
    old = backing_up.LEFT_S + 60
    os.utime(left, (left.stat().st_atime - old, left.stat().st_mtime - old))
    await world.backup()
    assert not left.exists()
    assert young.exists()


async def test_an_empty_log_is_not_backed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "libs.common.transport.log.SETTLE_TRIES", 2
    )  # it waits for a stream that is never made
    state = tmp_path / "state"
    shape.save(state, Shape(cluster_id="c", log_bytes=LOG_BYTES))
    running = start_servers(state, log_bytes=LOG_BYTES)
    world = World(tmp_path, running)
    try:
        with pytest.raises(MusterError):
            await world.backup()
    finally:
        for client in world.clients.values():
            await client.close()
        running.stop()
