"""A hostile node or tenant gets no kept weights of others, and no other files of the node."""

import asyncio
import time
from pathlib import Path

import pytest

from libs.common.errors import Refused
from libs.common.life import kept_life
from libs.common.messages.file_messages import OUTSIDE, FilePart
from libs.common.messages.link_messages import LinkAsk, SumAsk
from libs.common.messages.weight_messages import WeightsAsk
from libs.common.model import JobId, NodeId
from libs.job.transport.errors import Cause, LinkError
from libs.job.transport.link import Link
from libs.job.transport.transports import TcpTransport
from services.api_gateway.agents import weight_answers
from services.node_agent.fabric.tokens import NodeAccess
from tests.contract.transport_world import cause_of
from tests.integration.links_world import WITHIN_S, part, summed
from tests.integration.peer_weights_world import FILES, Nodes, nodes_at

pytestmark = pytest.mark.attack


def ask_of(
    dialler: str = "b", tenant: str = "red", request: int = 7, model: str = "chat"
) -> LinkAsk:
    return LinkAsk(
        dialler=NodeId(dialler),
        tenant=tenant,
        job_id=JobId(""),
        attempt=0,
        path=b"",
        model=model,
        request=request,
    )


def dial(nodes: Nodes, token: bytes, name: str = "b") -> Link:
    access = NodeAccess(nodes[name].key, lambda: nodes.roster, time.time_ns, token)
    return TcpTransport(access).connect(nodes["a"].links.address, WITHIN_S)


def is_served(link: Link) -> bool:
    try:
        return part(link, "config.json").data == FILES["config.json"]
    except LinkError:
        return False


@pytest.mark.parametrize(
    "ask",
    [
        ask_of(tenant="blue"),
        ask_of(request=6),
        ask_of(request=8),
        ask_of(model="other"),
    ],
)
async def test_weights_of_another_tenant_request_or_model_are_not_granted(
    tmp_path: Path, ask: LinkAsk
) -> None:
    async with nodes_at(tmp_path, "a", "b") as nodes:
        nodes["a"].fill()
        granted = nodes["a"].links.grant(ask)
        assert granted.token == b"" and "keeps no weights" in granted.text


async def test_a_node_without_an_entry_of_the_request_is_offered_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_answers, "PLACED_WAIT_S", 0.1)
    async with nodes_at(tmp_path, "a", "b") as nodes:
        nodes["a"].fill()
        answers = nodes.answers
        with pytest.raises(Refused, match="node b has no entry of request 7"):
            await answers.offer(WeightsAsk("chat", 7), NodeId("b"))
        nodes.record(NodeId("b"), kept_life.EVICTED)
        with pytest.raises(Refused, match="node b has no entry"):
            await answers.offer(WeightsAsk("chat", 7), NodeId("b"))
        nodes.record(NodeId("b"), kept_life.FILLING)
        with pytest.raises(Refused, match="request 6"):
            await answers.offer(WeightsAsk("chat", 6), NodeId("b"))
        assert (await answers.offer(WeightsAsk("chat", 7), NodeId("b"))).token


async def test_a_token_opens_one_session_of_one_node(tmp_path: Path) -> None:
    async with nodes_at(tmp_path, "a", "b", "c") as nodes:
        nodes["a"].fill()
        token = nodes["a"].links.grant(ask_of()).token
        error = cause_of(lambda: dial(nodes, token, "c"))
        assert error.cause is Cause.REFUSED and "for node b, not c" in error.detail
        with dial(nodes, token) as first:
            assert is_served(first)
            second = dial(nodes, token)
            assert not is_served(second) and is_served(first)
            second.close()
        while nodes["a"].links.sessions:
            await asyncio.sleep(0.01)
        error = cause_of(lambda: dial(nodes, token))
        assert error.cause is Cause.REFUSED and "was used" in error.detail


@pytest.mark.parametrize(
    "path",
    ["", ".", "../manifest.json", "shards", "shards/../config.json", "/etc/passwd", "shards/three"],
)
async def test_only_the_listed_files_are_read(tmp_path: Path, path: str) -> None:
    async with nodes_at(tmp_path, "a", "b") as nodes:
        nodes["a"].fill()
        (nodes["a"].folder() / "shards/three").write_text("not listed")
        with dial(nodes, nodes["a"].links.grant(ask_of()).token) as link:
            found = part(link, path)
            assert (found.fault, found.data) == (OUTSIDE, b"")
            assert is_served(link)


async def test_a_link_in_place_of_a_file_leads_nowhere(tmp_path: Path) -> None:
    async with nodes_at(tmp_path, "a", "b") as nodes:
        nodes["a"].fill()
        (tmp_path / "secret").write_text("secret")
        (nodes["a"].folder() / "config.json").unlink()
        (nodes["a"].folder() / "config.json").symlink_to(tmp_path / "secret")
        with dial(nodes, nodes["a"].links.grant(ask_of()).token) as link:
            found = part(link, "config.json")
            assert (found.fault, found.data) == ("unreadable", b"")


async def test_a_session_gives_nothing_more_when_the_entry_is_dropped(tmp_path: Path) -> None:
    async with nodes_at(tmp_path, "a", "b") as nodes:
        nodes["a"].fill()
        with dial(nodes, nodes["a"].links.grant(ask_of()).token) as link:
            assert is_served(link)
            nodes["a"].keeps.wanted.clear()
            found = part(link, "config.json")
            assert (found.fault, found.data) == ("missing", b"")


async def test_a_session_of_weights_reads_no_file_of_a_job_and_no_sum(tmp_path: Path) -> None:
    """The token of a job's file gives no weights either."""
    async with nodes_at(tmp_path, "a", "b") as nodes:
        nodes["a"].fill()
        links = nodes["a"].links
        links.tenant_of, links.part = (
            (lambda ref: "red"),
            (lambda ask: FilePart("file", 4, data=b"job!")),
        )
        with dial(nodes, links.grant(ask_of()).token) as link:
            assert is_served(link)
            assert "not sent whole" in summed(link, SumAsk(b"config.json", 2)).fault
        job = LinkAsk(NodeId("b"), "red", JobId("j1"), 1, b"config.json")
        with dial(nodes, links.grant(job).token) as link:
            assert part(link, "config.json").data == b"job!"
