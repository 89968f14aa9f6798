"""The drill: a cluster is backed up while it works, is lost, and is restored elsewhere.

Every job that the backup knows goes on or runs again, none twice at a time, and what was placed
after the backup ends. A machine that joined after the backup is in no roster of the restored
cluster.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from libs.cli import archive_process
from libs.common import fold, reading
from libs.common.state.cluster import Cluster
from services.audit.backup import contents, sealing
from services.audit.backup.building import Read, read_whole
from services.audit.backup.places import place_of
from services.audit.store.store import Store
from tests.integration.backup_world import Machine, World

pytestmark = pytest.mark.drill

JOBS = 6
# On a busy machine the restored agents take long to start, and their jobs must live until then.
LEASE_MS = "30000"
# Longer than the whole drill: a job that ends before proves nothing.
LONG_S = 300.0
# Short jobs that are submitted while the second backup runs, one after the other.
SHORT = 20


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path, MUSTER_LEASE_MS=LEASE_MS)
    yield found
    found.close()


def read(world: World) -> Read:
    """Read the backup as a restore does."""

    async def whole() -> Read:
        place = place_of(str(world.place))
        return await read_whole(
            await contents.opened(place, sealing.read_key(world.key), str(world.place))
        )

    return asyncio.run(whole())


def folded(world: World, upto: int) -> Cluster:
    """Fold the restored cluster's own archive."""
    store = Store(f"sqlite:///{world.state / archive_process.ARCHIVE / 'audit.db'}", read_only=True)
    cluster = Cluster()
    for record in store.commits():
        if record.seq <= upto:
            commit = reading.read(cluster.writers, record.subject, record.data)
            fold.apply_entry(cluster, record.seq, record.subject, commit)
    store.close()
    return cluster


def is_in(job: dict[str, Any], state: str, attempt: int = 1) -> bool:
    return job["state"] == state and job["attempt"] == attempt


def join(world: World, *names: str) -> None:
    """Let machines join, and wait until every machine has the roster of them all."""
    world.machines += [Machine(world, name) for name in names]
    count = len(world.machines)
    world.until(
        lambda: [node["state"] for node in world.get("/v1/nodes")["nodes"]] == ["healthy"] * count,
        "all machines are healthy",
    )
    world.until(
        lambda: all(len(machine.roster().nodes) == count for machine in world.machines),
        "all machines have the roster",
    )


@pytest.mark.timeout(400)
def test_a_lost_cluster_is_restored_and_no_job_is_lost_or_doubled(world: World) -> None:
    join(world, "m1", "m2", "m3")
    ids = [world.submit(LONG_S) for _ in range(JOBS)]
    world.until(lambda: all(is_in(job, "running") for job in world.jobs().values()), "all jobs run")
    world.cli("backup", "--new-key", str(world.key))
    world.backup()
    acknowledged = _submit_during_a_backup(world)
    before = read(world).cluster
    known = {*ids, *(job for job in acknowledged if job in before.jobs)}
    assert set(ids) <= set(before.jobs)
    later = world.submit(LONG_S)
    world.until(lambda: is_in(world.jobs()[later], "running"), "a later job runs")
    homes = {job["id"]: job["node_ids"] for job in world.jobs().values()}
    join(world, "m4")
    # Of the machines with jobs, the one with the fewest dies: their jobs fit on the others.
    counts = Counter(name for job_id in ids for name in homes[job_id])
    dead = min(counts, key=lambda name: counts[name])

    world.kill_all()
    for machine in world.machines:
        if machine.name in (dead, "m4"):
            machine.kill()
    said = world.restore("--leases-ended")
    assert f"commit {before.seq} " in said
    assert folded(world, before.seq) == before
    world.up()
    lost_ids = {job_id for job_id in ids if dead in homes[job_id]}
    world.until(lambda: _all_run(world, known, lost_ids), "all jobs of the backup run")
    jobs = world.jobs()
    assert set(jobs) == known
    for job_id in ids:
        attempt = 2 if job_id in lost_ids else 1
        assert jobs[job_id]["attempt"] == attempt, (job_id, homes[job_id])
    assert 0 < len(lost_ids) < len(ids)
    _check_rosters(world, dead)
    _check_lives(world, later)
    code = world.cli("audit", "verify")
    assert "the chain is whole" in code


def _submit_during_a_backup(world: World) -> list[str]:
    """Submit jobs while the second backup runs; return the acknowledged ones."""
    found: list[str] = []
    stop = threading.Event()

    def submit() -> None:
        while not stop.is_set() and len(found) < SHORT:
            found.append(world.submit(0.5))

    thread = threading.Thread(target=submit)
    thread.start()
    world.backup()
    stop.set()
    thread.join()
    return found


def _all_run(world: World, known: set[str], lost: set[str]) -> bool:
    """Return whether all jobs run or have ended, those of the lost node in another attempt."""
    jobs = world.jobs()
    return (
        set(jobs) == known
        and all(job["state"] in ("running", "completed") for job in jobs.values())
        and all(jobs[job_id]["attempt"] > 1 for job_id in lost)
    )


def _check_rosters(world: World, dead: str) -> None:
    """Check that the dead machine can be removed, which each living one's roster must allow.

    The roster of before has the machine that joined after the backup, and a sequence that the
    restored log has not reached.
    """
    living = [machine for machine in world.machines if not machine.dead]
    world.cli("node", "remove", dead)
    world.until(
        lambda: dead not in [node["id"] for node in world.get("/v1/nodes")["nodes"]],
        "the dead machine is removed",
    )
    for machine in living:
        roster = machine.roster()
        assert [node.node_id for node in roster.nodes] == ["m1", "m2", "m3"]
        assert roster.life


def _check_lives(world: World, later: str) -> None:
    """Check that no two processes of a job were alive at a time, and that the later job has ended.

    An attempt that was placed after the backup may have the number of one that comes later.
    """
    for times in world.processes().values():
        for first, second in pairwise(sorted(times)):
            assert first[1] < second[0]
    count = _beats(world, later)
    world.until(lambda: _beats(world, later) == count, "the later job is dead", within_s=10.0)


def _beats(world: World, job_id: str) -> int:
    return world.lives.read_text().count(f" {job_id} ")
