"""Files over a link between agents: whole, in order, with their sum, also over a broken link."""

import asyncio
import hashlib
import os
import time
from pathlib import Path

import msgspec

from libs.common import facts as f
from libs.common.messages import Roster, RosterEntry
from libs.common.messages.file_messages import MISSING, OUTSIDE, PART_BYTES, PRUNED
from libs.common.messages.link_messages import LinkAsk, LinkGranted, SumAsk
from libs.common.model import JobId, NodeId
from libs.common.subjects import ask_node
from libs.common.transport.bus_memory import MemoryBus
from libs.job.transport.transports import TcpTransport
from services.node_agent.directories.job_directories import JobDirectories
from services.node_agent.fabric.tokens import NodeAccess
from services.node_agent.jobs.files import part_of
from services.node_agent.links.links import Links
from services.node_agent.links.members import Members
from tests.integration.agent_world import NODE, world_at
from tests.integration.links_world import (
    DIALLER,
    NOW_NS,
    WITHIN_S,
    answer,
    key,
    part,
    serving_at,
    summed,
)


def roster_of(node: str) -> Roster:
    """The roster of a cluster of one serving node and the dialler."""
    keys = (key(node, 1), DIALLER)
    return Roster(
        cluster_id="cluster",
        nodes=tuple(RosterEntry(each.node_id, "", each.public, 1) for each in keys),
    )


def test_a_file_is_read_in_parts_and_has_the_sum_of_what_was_sent(tmp_path: Path) -> None:
    data = os.urandom(3 * PART_BYTES + 7)
    with serving_at(tmp_path / "root") as serving:
        (serving.root / "model").write_bytes(data)
        with serving.dial(serving.token("model")) as link:
            got = b"".join(part(link, "model", at).data for at in range(0, len(data), PART_BYTES))
            assert got == data
            found = summed(link, SumAsk(b"model", len(data)))
            assert found.sha256 == hashlib.sha256(data).hexdigest()


def test_a_part_that_was_skipped_leaves_no_sum(tmp_path: Path) -> None:
    with serving_at(tmp_path / "root") as serving:
        (serving.root / "model").write_bytes(bytes(2 * PART_BYTES))
        with serving.dial(serving.token("model")) as link:
            part(link, "model", PART_BYTES)
            assert "not sent whole" in summed(link, SumAsk(b"model", 2 * PART_BYTES)).fault


def test_a_session_survives_a_broken_connection(tmp_path: Path) -> None:
    data = os.urandom(2 * PART_BYTES)
    with serving_at(tmp_path / "root") as serving:
        (serving.root / "model").write_bytes(data)
        with serving.dial(serving.token("model")) as link:
            first = part(link, "model").data
            link.progress.suspend()
            assert first + part(link, "model", PART_BYTES).data == data
            assert link.stats().reconnections >= 1 and serving.links.sessions == 1


def test_a_token_is_signed_only_for_the_tenant_s_own_files_that_are_here(tmp_path: Path) -> None:
    with serving_at(tmp_path / "root") as serving:
        (serving.root / "model").touch()
        for ask, fault in (
            (serving.ask("model", job="j2"), PRUNED),
            (serving.ask("model", tenant="blue"), OUTSIDE),
            (serving.ask("gone"), MISSING),
            (serving.ask("../secret"), OUTSIDE),
        ):
            granted = serving.links.grant(ask)
            assert granted.fault == fault and not granted.token


def test_the_rate_of_a_tenant_is_bounded(tmp_path: Path) -> None:
    with serving_at(tmp_path / "root", bytes_per_s=4 * PART_BYTES) as serving:
        (serving.root / "model").write_bytes(bytes(6 * PART_BYTES))
        began_s = time.monotonic()
        with serving.dial(serving.token("model")) as link:
            for at in range(6):
                part(link, "model", at * PART_BYTES)
        assert time.monotonic() - began_s > 0.4  # six quarters of a second, less one of burst


async def test_a_gateway_gets_a_token_over_the_bus(tmp_path: Path) -> None:
    bus = MemoryBus()
    with serving_at(tmp_path / "root") as serving:
        (serving.root / "model").write_text("x")
        await serving.links.listen(bus)
        said = msgspec.msgpack.encode(serving.ask("model"))
        reply = await bus.request(ask_node("server", "link"), said, WITHIN_S)
        granted = msgspec.msgpack.decode(reply, type=LinkGranted)
        link = await asyncio.to_thread(serving.dial, granted.token)
        assert (await asyncio.to_thread(part, link, "model")).data == b"x"
        await asyncio.to_thread(link.close)
        reply = await bus.request(ask_node("server", "link"), b"\xff", WITHIN_S)
        assert "not a LinkAsk" in msgspec.msgpack.decode(reply, type=LinkGranted).text


def test_a_session_that_ended_frees_its_place(tmp_path: Path) -> None:
    with serving_at(tmp_path / "root") as serving:
        (serving.root / "model").write_text("x")
        with serving.dial(serving.token("model")) as link:
            assert answer(link, SumAsk(b"model", 0))
            assert serving.links.sessions == 1
        deadline_s = time.monotonic() + WITHIN_S
        while serving.links.sessions:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)


async def test_a_real_agent_signs_tokens_for_its_jobs_and_serves_them(tmp_path: Path) -> None:
    async with world_at(tmp_path / "state") as world:
        await world.end()
        agent = world.make()
        jobs = agent.jobs
        assert isinstance(jobs, JobDirectories)
        agent.links = Links(
            key=key(NODE, 1),
            members=Members(NodeId(NODE), lambda: roster_of(NODE)),
            wall_ns=lambda: NOW_NS,
            tenant_of=jobs.tenant_of,
            part=lambda ask: part_of(NODE, jobs.root_of, ask),
            host="127.0.0.1",
        )
        world.agent, world.stop = agent, asyncio.Event()
        world.life = asyncio.create_task(agent.run(world.stop))
        await world.until(lambda: len(world.facts(f.NodeRegistered)) > 1)
        await world.start("j1", "echo hello > made")
        await world.said(f.JobReleased, "j1")
        for tenant, fault in (("default", ""), ("red", OUTSIDE)):
            said = LinkAsk(NodeId("dialler"), tenant, JobId("j1"), 1, b"made")
            reply = await world.bus.request(
                ask_node(NODE, "link"), msgspec.msgpack.encode(said), WITHIN_S
            )
            granted = msgspec.msgpack.decode(reply, type=LinkGranted)
            assert granted.fault == fault
            if not fault:
                access = NodeAccess(DIALLER, lambda: roster_of(NODE), lambda: NOW_NS, granted.token)
                link = await asyncio.to_thread(TcpTransport(access).connect, granted.address)
                assert (await asyncio.to_thread(part, link, "made")).data == b"hello\n"
                await asyncio.to_thread(link.close)
