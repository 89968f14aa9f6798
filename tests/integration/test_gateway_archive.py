"""A gateway over a trimmed log: what the log no longer holds is asked of the archive, and without
one the answer is one clear line.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from libs.common import facts as f
from libs.common import fold
from libs.common.folds import job_fold
from libs.common.state.cluster import Cluster
from libs.common.transport import snapshot
from libs.common.transport.log_memory import MemoryLog, MemoryStream
from libs.common.transport.snapshot_store import BASE_OBJECT, MemorySnapshots
from services.api_gateway.views import history
from services.audit import answers
from services.audit.answers import Answers
from services.audit.service import Audit
from services.audit.store.store import Store
from tests.integration.audit_world import no_head
from tests.integration.gateway_world import World, gateway_world


@asynccontextmanager
async def archived(
    world: World, stream: MemoryStream, path: Path, begin: int = 1
) -> AsyncIterator[None]:
    """The real audit beside the gateway, on its bus. It archives commits from `begin` on."""
    store, stop = Store(f"sqlite:///{path / 'audit.db'}"), asyncio.Event()
    audit = Audit(MemoryLog(stream), store, MemorySnapshots(), begin)
    await audit.open()
    await Answers(store, "test", audit.beyond, no_head, audit.log_end).listen(world.bus)
    running = asyncio.create_task(audit.run(stop))
    while audit.archived < len(stream.entries):
        await asyncio.sleep(0.01)
    yield
    stop.set()
    await running


async def trim(stream: MemoryStream, store: MemorySnapshots, upto: int) -> None:
    cluster = Cluster()
    for entry in stream.entries[:upto]:
        fold.apply_entry(cluster, entry.seq, entry.subject, f.decode(entry.data))
    await store.put(BASE_OBJECT, snapshot.encode(cluster))
    stream.purge({subject: mark.seq for subject, mark in cluster.writers.items()})


async def two_jobs(
    stream: MemoryStream, store: MemorySnapshots, path: Path
) -> tuple[list[str], list[object]]:
    """Two jobs that ended, a trimmed log, and what a gateway that had read everything
    said of them.
    """
    async with gateway_world(path, stream, store) as world:
        await world.writers.begin_term()
        await world.writers.register("n1")
        ids = [await world.run_to("completed") for _ in range(2)]
        told = [await world.ask("GET", path) for path in asked(ids[1])]
    return ids, told


def asked(job_id: str) -> list[str]:
    return [
        f"/v1/jobs/{job_id}",
        f"/v1/jobs/{job_id}/history",
        "/v1/state?at=5",
        f"/v1/events?job={job_id}",
        "/v1/events?limit=5",
    ]


async def test_a_gateway_that_starts_over_a_trimmed_log_answers_as_before(tmp_path: Path) -> None:
    stream, store = MemoryStream(), MemorySnapshots()
    ids, told = await two_jobs(stream, store, tmp_path)
    async with gateway_world(tmp_path, stream) as whole, archived(whole, stream, tmp_path):
        pass
    await trim(stream, store, len(stream.entries) - 1)
    async with gateway_world(tmp_path, stream, store) as world, archived(world, stream, tmp_path):
        assert [await world.ask("GET", path) for path in asked(ids[1])] == told
        assert (await world.submit())["state"] == "pending"


async def test_a_job_that_left_the_fold_is_read_from_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_fold, "ENDED_JOBS_KEPT", 1)
    stream, store = MemoryStream(), MemorySnapshots()
    async with gateway_world(tmp_path, stream, store) as world:
        await world.writers.begin_term()
        await world.writers.register("n1")
        ids = [await world.run_to("completed") for _ in range(2)]
        async with archived(world, stream, tmp_path):
            assert (
                f"muster log --job {ids[0]}"
                in (await world.ask("GET", f"/v1/jobs/{ids[0]}", 410))["detail"]
            )
            kinds = [
                row["kind"]
                for row in (await world.ask("GET", f"/v1/jobs/{ids[0]}/history"))["facts"]
            ]
            assert (kinds[0], kinds[-1]) == ("job.submitted", "job.closed")
            assert len((await world.ask("GET", f"/v1/events?job={ids[0]}"))["events"]) == len(kinds)
            await world.ask("GET", "/v1/jobs/unknown", 404)


async def test_a_long_history_has_its_middle_from_the_archive_or_says_that_it_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "SEQS_PER_JOB", 6)
    monkeypatch.setattr(history, "FIRST_KEPT", 2)
    monkeypatch.setattr(answers, "JOB_SEQS_MAX", 4)
    stream = MemoryStream()
    async with gateway_world(tmp_path, stream) as world:
        job_id = (await world.submit())["id"]
        (submitted,) = world.gateway.history.of(job_id)
        seqs = [submitted, *[await world.writers.admit(job_id) for _ in range(20)]]
        await world.settle()
        address = f"/v1/jobs/{job_id}/history"
        short = await world.ask("GET", address)
        assert [row["seq"] for row in short["facts"]] == [*seqs[:2], *seqs[-4:]]
        assert short["left_out"]
        assert not (await world.ask("GET", f"{address}?after={seqs[-4]}"))["left_out"]
        async with archived(world, stream, tmp_path):
            for limit in (1, 3, 7, 100):
                found, after = [], 0
                while after is not None:
                    page = await world.ask("GET", f"{address}?limit={limit}&after={after}")
                    assert not page["left_out"]
                    found += [row["seq"] for row in page["facts"]]
                    after = page["next"]
                assert found == seqs


async def test_without_the_archive_the_past_is_one_clear_line(tmp_path: Path) -> None:
    stream, store = MemoryStream(), MemorySnapshots()
    await two_jobs(stream, store, tmp_path)
    await trim(stream, store, len(stream.entries) - 1)
    async with gateway_world(tmp_path, stream, store) as world:
        problem = await world.ask("GET", "/v1/state?at=5", 503)
        assert (
            "was trimmed from the log, and the archive does not answer: check that audit runs"
            in problem["detail"]
        )
        await world.ask("GET", "/v1/events", 503)
        assert len((await world.ask("GET", "/v1/jobs?all=1"))["jobs"]) == 2
