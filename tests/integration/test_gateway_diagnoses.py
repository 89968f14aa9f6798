"""/v1/jobs/{id}/diagnoses: the verdict on what the nodes saw, its record, and who may ask."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from libs.common import facts as f
from libs.common import subjects
from libs.common.diagnosis.evidence import DiagnosisAsk, NodeSeen, ProcessSeen, SilenceTold
from libs.common.model import JobId, NodeId
from services.api_gateway.diagnosis import asking
from services.api_gateway.diagnosis.asking import Examination
from services.api_gateway.diagnosis.silence import NODE_AT_ONCE
from tests.integration.gateway_world import World, gateway_world
from tests.unit.diagnosis_world import LOCKED, process, waits

AFTER_S = 2


class Node:
    """A node that answers with the evidence that the test sets."""

    def __init__(self, world: World, member: int, *processes: ProcessSeen) -> None:
        self.world, self.name = world, NodeId(f"n{member + 1}")
        self.seen = NodeSeen(self.name, member, silent_s=900, processes=processes)
        self.asked: list[DiagnosisAsk] = []
        self.on_asked: Callable[[], None] = lambda: None

    async def listen(self) -> None:
        await self.world.bus.subscribe(subjects.ask_node(self.name, "diagnosis"), self._on_ask)

    async def _on_ask(self, subject: str, data: bytes) -> bytes:
        self.asked.append(msgspec.msgpack.decode(data, type=DiagnosisAsk))
        self.on_asked()
        return msgspec.msgpack.encode(self.seen)


async def running(world: World, **fields: object) -> tuple[str, list[Node]]:
    """Return a running job of two nodes, where rank 5 is in a lock and the others wait for it."""
    ranks = [process(rank, LOCKED if rank == 5 else waits()) for rank in range(8)]
    nodes = [Node(world, member, *ranks[4 * member : 4 * member + 4]) for member in (0, 1)]
    await world.writers.begin_term()
    for node in nodes:
        await world.writers.register(node.name)
        await node.listen()
    await world.settle()
    job_id = str((await world.submit(nodes=2, **fields))["id"])
    await world.writers.queue(job_id)
    await world.writers.place(job_id, "n1", "n2")
    for node in nodes:
        await world.writers.start(job_id, node.name)
    await world.settle()
    return job_id, nodes


async def diagnosed(world: World) -> list[f.JobDiagnosed]:
    return [fact for fact in await world.said() if isinstance(fact, f.JobDiagnosed)]


async def test_a_diagnosis_names_the_rank_and_is_recorded_once(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        job_id, nodes = await running(world)
        found = await world.ask("POST", f"/v1/jobs/{job_id}/diagnoses")
        assert (found["verdict"], found["cause"], found["recorded"]) == ("apart", "lock", True)
        assert [ask.dumps for node in nodes for ask in node.asked] == [True, True]
        assert (found["suspects"][0]["rank"], found["suspects"][0]["node_id"]) == (5, "n2")
        assert [group["ranks"] for group in found["groups"]] == ["0-4,6-7", "5"]
        again = await world.ask("POST", f"/v1/jobs/{job_id}/diagnoses")
        assert (again["verdict"], again["recorded"]) == ("apart", False)
        (fact,) = await diagnosed(world)
        assert (fact.rank, fact.node_id, fact.automatic) == (5, "n2", False)
        (row,) = (await world.ask("GET", f"/v1/jobs/{job_id}/diagnoses"))["diagnoses"]
        assert (row["rank"], row["verdict"], row["attempt"]) == (5, "apart", 1)
        history = await world.ask("GET", f"/v1/jobs/{job_id}/history")
        assert "rank 5 on n2" in history["facts"][-1]["summary"]


async def test_evidence_is_what_the_nodes_kept(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        job_id, nodes = await running(world)
        found = await world.ask("GET", f"/v1/jobs/{job_id}/diagnoses/evidence")
        assert [len(node["processes"]) for node in found["nodes"]] == [4, 4]
        assert [ask.kept for node in nodes for ask in node.asked] == [True, True]


async def test_a_node_that_lies_about_its_name_is_read_under_its_own(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        job_id, nodes = await running(world)
        nodes[1].seen = msgspec.structs.replace(nodes[1].seen, node_id=NodeId("n1"), member=0)
        found = await world.ask("POST", f"/v1/jobs/{job_id}/diagnoses")
        assert found["suspects"][0]["node_id"] == "n2"


async def test_only_running_jobs_are_examined_and_only_by_their_users(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        job_id, _ = await running(world)
        waits_ = str((await world.submit())["id"])
        await world.ask("POST", f"/v1/jobs/{waits_}/diagnoses", 409)
        await world.ask("POST", "/v1/jobs/nosuchjob/diagnoses", 404)
        async with world.as_("member", "bob") as bob:
            await bob.ask("POST", f"/v1/jobs/{job_id}/diagnoses", 403)
            await bob.ask("GET", f"/v1/jobs/{job_id}/diagnoses/evidence", 403)
            await bob.ask("GET", f"/v1/jobs/{job_id}/diagnoses")


async def test_evidence_of_an_attempt_that_ended_meanwhile_is_not_recorded(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        job_id, nodes = await running(world)
        job = world.gateway.cluster.jobs[JobId(job_id)]

        def begin_another() -> None:
            job.attempt = 2

        nodes[0].on_asked = begin_another
        found = await world.ask("POST", f"/v1/jobs/{job_id}/diagnoses")
        assert (found["attempt"], found["verdict"], found["recorded"]) == (1, "apart", False)
        assert await diagnosed(world) == []


async def test_those_who_ask_at_once_share_one_diagnosis(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        job_id, nodes = await running(world)
        path = f"/v1/jobs/{job_id}/diagnoses"
        await asyncio.gather(*(world.ask("POST", path) for _ in range(5)))
        assert len(nodes[0].asked) < 5


async def test_diagnoses_of_one_tenant_leave_places_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "TENANT_WAITING_MAX", 1)
    async with gateway_world(tmp_path) as world:
        job_id, _ = await running(world)
        evidence = world.gateway.answers.evidence
        job = world.gateway.cluster.jobs[JobId(job_id)]
        other, mine = (Examination(JobId(name), 1, dumps=True) for name in ("other", "mine"))
        evidence.tenants[other] = "another tenant"
        assert len(await evidence.of(job, dumps=True)) == 2
        evidence.tenants[mine] = job.tenant
        with pytest.raises(asking.Busy):
            await evidence.of(job, dumps=True)
        assert set(evidence.tenants) == {other, mine}


async def test_reports_of_one_node_leave_places_to_others(tmp_path: Path) -> None:
    async with gateway_world(tmp_path, diagnose_after_s=AFTER_S) as world:
        job_id, _ = await running(world)
        answers = world.gateway.answers.silence
        answers.told_by |= {JobId(str(number)): NodeId("n1") for number in range(NODE_AT_ONCE)}
        await told(world, job_id)
        assert JobId(job_id) not in answers.open
        await told(world, job_id, node="n2")
        assert answers.told_by[JobId(job_id)] == "n2"
        await answers.open[JobId(job_id)]
        assert JobId(job_id) not in answers.told_by


async def told(world: World, job_id: str, node: str = "n1", attempt: int = 1) -> None:
    silence = msgspec.msgpack.encode(SilenceTold(JobId(job_id), attempt, 900))
    await world.bus.request(subjects.ask_diagnosis(node), silence, 5.0)


async def test_a_silent_job_is_diagnosed_twice_and_recorded_without_a_request(
    tmp_path: Path,
) -> None:
    async with gateway_world(tmp_path, diagnose_after_s=AFTER_S) as world:
        job_id, nodes = await running(world)
        await told(world, job_id)
        await told(world, job_id)
        async with asyncio.timeout(10):
            while not await diagnosed(world):
                await asyncio.sleep(0.05)
        (fact,) = await diagnosed(world)
        assert (fact.rank, fact.automatic, fact.user) == (5, True, "")
        assert [ask.dumps for ask in nodes[0].asked] == [False, False]


async def test_silence_is_ignored_from_a_node_without_the_job_and_after_progress(
    tmp_path: Path,
) -> None:
    async with gateway_world(tmp_path, diagnose_after_s=AFTER_S) as world:
        job_id, nodes = await running(world)
        await told(world, job_id, attempt=2)
        assert nodes[0].asked == []
        nodes[1].seen = msgspec.structs.replace(nodes[1].seen, silent_s=0)
        await told(world, job_id)
        async with asyncio.timeout(10):
            while len(nodes[0].asked) < 2:
                await asyncio.sleep(0.05)
        await world.settle()
        assert await diagnosed(world) == []
