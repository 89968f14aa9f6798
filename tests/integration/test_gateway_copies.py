"""Copies from node to node at a real gateway: permissions, tenants, and what nodes refuse."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.common.model import AttemptRef
from services.node_agent.jobs.files import part_of
from services.node_agent.links import grants
from services.node_agent.links.copies import Copies
from services.node_agent.links.links import Links
from services.node_agent.links.members import Members
from tests.integration.gateway_world import Json, World, gateway_world
from tests.integration.links_world import DIALLER, NOW_NS, ROSTER, SERVER


class Nodes:
    """The nodes `server` and `dialler` of a gateway, with jobs' directories below `root`."""

    def __init__(self, world: World, root: Path) -> None:
        self.world, self.root = world, root
        self.links = Links(
            key=SERVER,
            members=Members(SERVER.node_id, lambda: ROSTER),
            wall_ns=lambda: NOW_NS,
            tenant_of=self._tenant_of,
            part=lambda ask: part_of("server", self._root_of, ask),
            host="127.0.0.1",
        )
        self.copies = Copies(
            key=DIALLER,
            members=Members(DIALLER.node_id, lambda: ROSTER),
            wall_ns=lambda: NOW_NS,
            tenant_of=self._tenant_of,
            root_of=self._root_of,
        )

    def _root_of(self, ref: AttemptRef) -> tuple[str, bool, list[int]] | None:
        folder = self.root / ref.job_id
        return (str(folder), True, []) if folder.exists() else None

    def _tenant_of(self, ref: AttemptRef) -> str:
        return "default" if (self.root / ref.job_id).exists() else ""

    async def register(self) -> None:
        for name in ("server", "dialler"):
            await self.world.writers.register(name, link_address=self.links.address)
        await self.world.writers.register("old")
        await self.links.listen(self.world.bus)
        await self.copies.listen(self.world.bus)

    async def job(self, node: str, **fields: object) -> str:
        """A running job and its directory."""
        job_id = await self.world.run_to("running", node, **fields)
        (self.root / job_id).mkdir()
        return job_id

    def stop(self) -> None:
        self.copies.stop()
        self.links.stop()


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with gateway_world(tmp_path, records_access=True) as world:
        await world.writers.begin_term()
        (tmp_path / "root").mkdir()
        found = Nodes(world, tmp_path / "root")
        await found.register()
        yield found
        await asyncio.to_thread(found.stop)


def body(to_job: str, **more: object) -> dict[str, object]:
    return {"path": "x", "to_node": "dialler", "to_job": to_job, **more}


async def test_a_copy_is_started_and_shown_with_both_nodes(nodes: Nodes) -> None:
    source, target = await nodes.job("server"), await nodes.job("dialler")
    (nodes.root / source / "x").write_text("hello")
    copy: Json = await nodes.world.ask(
        "POST", f"/v1/jobs/{source}/copies", 202, json=body(target, to_path="y")
    )
    where = f"copies/{copy['id']}"
    while copy["state"] == "copying":
        await asyncio.sleep(0.02)
        copy = await nodes.world.ask("GET", f"/v1/jobs/{source}/{where}")
    assert (copy["state"], copy["node_id"], copy["to_node"]) == ("copied", "server", "dialler")
    assert (copy["job_id"], copy["to_job"], copy["placed"]) == (source, target, "y")
    assert (copy["size_bytes"], copy["files"], copy["error"]) == (5, 1, "")
    assert (nodes.root / target / "y").read_text() == "hello"
    await nodes.world.ask("GET", f"/v1/jobs/{target}/{where}", 404)
    await nodes.world.ask("GET", f"/v1/jobs/{source}/copies/dialler.none", 404)
    await nodes.world.ask("GET", f"/v1/jobs/{source}/copies/none", 404)


async def test_a_copy_needs_the_right_to_change_both_jobs(nodes: Nodes) -> None:
    jobs = [await nodes.job("server", user=user) for user in ("ada", "carol")]
    for job in jobs:
        (nodes.root / job / "x").touch()
    async with nodes.world.as_("member", "ada") as ada, nodes.world.as_("viewer", "ada") as viewer:
        await viewer.ask("POST", f"/v1/jobs/{jobs[0]}/copies", 403, json=body(jobs[0]))
        for source, target in (jobs, reversed(jobs)):
            said = await ada.ask("POST", f"/v1/jobs/{source}/copies", 403, json=body(target))
            assert jobs[1] in said["detail"]
        await ada.ask("POST", f"/v1/jobs/{jobs[0]}/copies", 202, json=body(jobs[0], to_path="y"))


@pytest.mark.parametrize(
    ("more", "status", "words"),
    [
        ({"path": "gone"}, 404, "no such file: gone"),
        ({"path": "../.."}, 422, "leads out"),
        ({"path": "y" * 1_025}, 422, "path: not valid: give at most 1024 bytes"),
        ({"to_node": "none"}, 404, "to_node: node 'none' does not exist"),
        ({"to_node": "old"}, 409, "node old has no links to other nodes"),
        ({"node_id": "old"}, 409, "node old has no links to other nodes"),
        ({"attempt": 9}, 422, "has no attempt 9"),
        ({"to": "x"}, 422, "'to' is not known"),
    ],
)
async def test_a_wrong_request_is_refused_by_field(
    nodes: Nodes, more: dict[str, object], status: int, words: str
) -> None:
    job = await nodes.job("server")
    (nodes.root / job / "x").touch()
    said = await nodes.world.ask("POST", f"/v1/jobs/{job}/copies", status, json=body(job, **more))
    assert words in said["detail"]


async def test_a_target_job_that_is_not_on_the_node_is_refused(nodes: Nodes) -> None:
    source = await nodes.job("server")
    (nodes.root / source / "x").touch()
    elsewhere = await nodes.world.run_to("running", "old")
    said = await nodes.world.ask("POST", f"/v1/jobs/{source}/copies", 410, json=body(elsewhere))
    assert "node dialler has no directory of job" in said["detail"]


async def test_too_many_tokens_are_a_fault_of_their_own(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grants, "GRANTS_PER_TENANT", 0)
    job = await nodes.job("server")
    (nodes.root / job / "x").touch()
    said = await nodes.world.ask("POST", f"/v1/jobs/{job}/copies", 503, json=body(job))
    assert "Wait until copies end" in said["detail"]


async def test_jobs_of_two_tenants_do_not_copy_to_each_other(nodes: Nodes) -> None:
    source = await nodes.job("server")
    await nodes.world.ask("PUT", "/v1/tenants/physics", 201)
    async with nodes.world.as_("member", "eve", tenant="physics") as eve:
        other = await eve.run_to("running", "dialler")
        await eve.ask("POST", f"/v1/jobs/{other}/copies", 404, json=body(source))
        await eve.ask("POST", f"/v1/jobs/{source}/copies", 404, json=body(other))
    said = await nodes.world.ask("POST", f"/v1/jobs/{source}/copies", 422, json=body(other))
    assert "copy between jobs of one tenant" in said["detail"]
