"""Hostile nodes and uploads: none reads what its job does not bring, and none plants bytes."""

import os
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from libs.common.errors import Refused
from libs.common.life import job_life
from libs.common.messages.file_messages import MISSING, OUTSIDE, PART_BYTES, FilePart
from libs.common.messages.link_messages import LinkAsk, LinkGranted, SumAsk
from libs.common.model import JobId, NodeId
from libs.common.transport.uploads import UploadAsk
from libs.job.transport.transports import TcpTransport
from services.node_agent.fabric.tokens import NodeAccess
from services.node_agent.links.shared_uploads import ARCHIVE
from services.node_agent.uploads import fetching
from tests.integration.links_world import part, summed
from tests.integration.peer_uploads_world import DATA, SHA, Nodes, nodes_at, start_order

pytestmark = pytest.mark.attack


def link_ask(tenant: str = "red", upload: str = SHA, dialler: str = "b") -> LinkAsk:
    return LinkAsk(NodeId(dialler), tenant, JobId(""), 0, b"", upload=upload)


async def with_source(nodes: Nodes) -> None:
    nodes.place("j0", "a")
    await nodes["a"].start("j0")


async def test_a_gateway_names_a_source_for_the_asking_node_s_own_job_only(tmp_path: Path) -> None:
    async with nodes_at(tmp_path, "a", "b") as nodes:
        await with_source(nodes)
        nodes.place("blue", "b", tenant="blue", upload=SHA)
        nodes.place("other", "b", upload="ab" * 32)
        nodes.place("j1", "a")
        for job, refused in (
            ("blue", "is not stored any more"),  # the same hash, of a tenant that never sent it
            ("other", "is not stored any more"),
            ("j1", "is not on node b"),
            ("j0", "is not on node b"),
        ):
            ask = UploadAsk(JobId(job), 1, peers=True)
            with pytest.raises(Exception, match=refused):
                await nodes.answers._piece(ask, NodeId("b"))
        nodes.place("ended", "b")
        nodes.member("ended", NodeId("b")).state = job_life.RELEASED
        with pytest.raises(Exception, match="is over on node b"):
            await nodes.answers._piece(UploadAsk(JobId("ended"), 1, peers=True), NodeId("b"))


async def test_a_source_of_another_tenant_is_never_named(tmp_path: Path) -> None:
    async with nodes_at(tmp_path, "a", "b") as nodes:
        await with_source(nodes)
        nodes.store.archives["blue", SHA] = DATA
        nodes.place("blue", "b", tenant="blue")
        found = await nodes.answers._piece(UploadAsk(JobId("blue"), 1, peers=True), NodeId("b"))
        assert not found.token and found.data  # from the gateway, and not from node a


async def test_a_token_reaches_the_archive_of_its_tenant_and_nothing_else(tmp_path: Path) -> None:
    async with nodes_at(tmp_path, "a", "b") as nodes:
        await with_source(nodes)
        source = nodes["a"]
        for ask in (link_ask(tenant="blue"), link_ask(upload="ab" * 32), link_ask(upload="../x")):
            assert source.links.grant(ask).fault == MISSING
        granted = source.links.grant(link_ask())
        access = NodeAccess(nodes["b"].key, lambda: nodes.roster, source.links.grants.wall_ns)
        access.token = granted.token
        with TcpTransport(access).connect(granted.address, 5.0) as link:
            assert part(link, ARCHIVE.decode()).data == DATA[:PART_BYTES]
            assert part(link, ARCHIVE.decode(), PART_BYTES).data == DATA[PART_BYTES:][:PART_BYTES]
            for path in (f"red.{SHA}", "", "../uploads", f"blue.{SHA}", "archive/x"):
                assert part(link, path).fault == OUTSIDE
            assert "not sent whole" in summed(link, SumAsk(ARCHIVE, PART_BYTES)).fault


async def test_a_token_of_another_node_opens_nothing(tmp_path: Path) -> None:
    async with nodes_at(tmp_path, "a", "b", "c") as nodes:
        await with_source(nodes)
        granted = nodes["a"].links.grant(link_ask(dialler="b"))
        access = NodeAccess(
            nodes["c"].key, lambda: nodes.roster, nodes["a"].links.grants.wall_ns, granted.token
        )
        with pytest.raises(Exception, match="the token is for node b, not c"):
            TcpTransport(access).connect(granted.address, 2.0)


async def test_the_archive_that_leaves_ends_its_sessions(tmp_path: Path) -> None:
    async with nodes_at(tmp_path, "a", "b") as nodes:
        await with_source(nodes)
        granted = nodes["a"].links.grant(link_ask())
        access = NodeAccess(
            nodes["b"].key, lambda: nodes.roster, nodes["a"].links.grants.wall_ns, granted.token
        )
        with TcpTransport(access).connect(granted.address, 5.0) as link:
            assert part(link, ARCHIVE.decode()).data
            nodes["a"].cache.bytes_max = 0
            with nodes["a"].cache.staged(10) as stage:
                stage.write(b"newer")
                nodes["a"].cache.adopt("red", stage.sha256, stage)
            assert part(link, ARCHIVE.decode(), PART_BYTES).fault == MISSING


@pytest.mark.parametrize(
    "lie", ["other bytes", "shorter", "longer", "endless", "no file", "stalls", "drips"]
)
async def test_a_node_that_lies_is_avoided_and_the_job_gets_the_right_bytes(
    tmp_path: Path, lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "SLOW_S", 0.5)
    async with nodes_at(tmp_path, "a", "b", answer_s=0.5) as nodes:
        await with_source(nodes)
        shared = nodes["a"].links.uploads
        assert shared is not None
        honest = shared.part

        def lying(ask: LinkAsk, path: bytes, offset: int) -> FilePart:
            found = honest(ask, path, offset)
            if lie == "stalls" and offset:
                time.sleep(1.0)
            if lie == "drips":
                time.sleep(0.3)
            replaced = {
                "other bytes": {"data": os.urandom(len(found.data))},
                "shorter": {"data": found.data[:-1]},
                "longer": {"data": found.data + bytes(PART_BYTES)},
                "endless": {"size_bytes": 1 << 50},
                "no file": {"kind": "folder"},
                "stalls": {},
                "drips": {},
            }[lie]
            return FilePart(
                **{
                    "kind": found.kind,
                    "size_bytes": found.size_bytes,
                    "identity": found.identity,
                    "data": found.data,
                    **replaced,
                }
            )

        monkeypatch.setattr(shared, "part", lying)
        nodes.place("j1", "b")
        before = nodes.store.firsts
        assert await nodes["b"].archive() == DATA
        assert nodes.store.firsts == before + 1
        assert [path.name for path in nodes["b"].cache.folder.iterdir()] == [f"red.{SHA}"]


async def test_a_source_whose_job_was_stopped_is_not_avoided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes_at(tmp_path, "a", "b") as nodes:
        await with_source(nodes)
        shared, asked = nodes["a"].links.uploads, threading.Event()
        assert shared is not None
        honest = shared.part

        def watched(ask: LinkAsk, path: bytes, offset: int) -> FilePart:
            asked.set()
            return honest(ask, path, offset)

        monkeypatch.setattr(shared, "part", watched)
        nodes.place("j1", "b")
        uploads = nodes["b"].uploads
        with pytest.raises(Refused, match="stopped before it started"):
            async with uploads.opened(start_order("j1"), lambda: not asked.is_set()):
                pass
        assert uploads.avoided.nodes(SHA, time.monotonic()) == ()


@pytest.mark.parametrize(
    "granted",
    [
        LinkGranted(address="10.0.0.1:²", token=b"t"),
        LinkGranted(address="a..b:80", token=b"t"),
        LinkGranted(token=b"t" * (64 << 10)),
    ],
)
async def test_a_node_that_grants_nonsense_is_avoided_and_ends_no_agent(
    tmp_path: Path, granted: LinkGranted, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes_at(tmp_path, "a", "b", answer_s=0.5) as nodes:
        await with_source(nodes)
        links = nodes["a"].links
        answer = replace(granted, address=granted.address or links.address)
        monkeypatch.setattr(links, "grant", lambda ask: answer)
        nodes.place("j1", "b")
        assert await nodes["b"].archive() == DATA
        assert nodes["b"].uploads.avoided.nodes(SHA, time.monotonic()) == ("a",)
