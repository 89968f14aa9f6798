"""Any local process floods the agents' sockets: the rule by which most nodes keep their jobs
without a control plane still works.

Real sockets, real processes that flood. The leases go on for as long as the flood lasts, or the
jobs of these nodes would be killed.
"""

import asyncio
import contextlib
import errno
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from libs.common.model import NodeId
from libs.embedded.living import die_with_parent
from services.node_agent.peers.peer_budget import HEARD_PER_NODE
from services.node_agent.peers.peer_messages import NONCE_BYTES, PeerAsk
from tests.integration.peers_world import Node, fleet

LEASE_MS = 4_000
LEASES = 2.5
LOOK_S = 0.1


@contextlib.contextmanager
def flooding(nodes: Sequence[Node], kind: str, rate: int) -> Iterator[None]:
    line = [
        sys.executable,
        "-m",
        "tests.attack.flooding",
        kind,
        str(rate),
        *(node.address for node in nodes),
    ]
    process = subprocess.Popen(line, preexec_fn=die_with_parent())
    try:
        yield
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("kind", "rate"),
    [("junk", 20_000), ("forged", 6_000), ("answers", 10_000)],
    ids=str,
)
async def test_a_flood_from_a_local_process_ends_no_lease(
    tmp_path: Path, kind: str, rate: int
) -> None:
    async with fleet(tmp_path, 3, LEASE_MS) as nodes:
        with flooding(nodes, kind, rate):
            for _ in range(int(LEASES * LEASE_MS / 1_000 / LOOK_S)):
                await asyncio.sleep(LOOK_S)
                assert all(node.lives() for node in nodes)


async def test_a_hostile_node_that_floods_with_its_own_key_ends_no_lease_of_other_nodes(
    tmp_path: Path,
) -> None:
    """From its own address, which the others know, with valid signatures: it uses up its own
    budget.
    """
    async with fleet(tmp_path, 4, LEASE_MS) as nodes:
        hostile, honest = nodes[3], nodes[:3]
        asks = {
            node.node_id: hostile.peers.signer.datagram(_ask(hostile, node.node_id))
            for node in honest
        }
        for _ in range(int(LEASES * LEASE_MS / 1_000 / 0.02)):
            for node in honest:
                for _ in range(40):
                    hostile.channel.send(node.address, asks[node.node_id])
            await asyncio.sleep(0.02)
            assert all(node.lives() for node in honest)


@pytest.mark.parametrize(
    "names_recipient", [True, False], ids=["question of now", "question of an older build"]
)
async def test_questions_sent_on_to_other_nodes_use_up_no_budget(
    tmp_path: Path, names_recipient: bool
) -> None:
    """A hostile node may keep the signed questions that honest nodes sent to it, and send them to
    the others.
    """
    async with fleet(tmp_path, 4, LEASE_MS) as nodes:
        asker, heard, hostile = nodes[0], nodes[1], nodes[3]
        heard.peers._hear(asker.address, asker.peers.signer.datagram(_ask(asker, heard.node_id)))
        to = hostile.node_id if names_recipient else NodeId("")
        sent_on = [
            asker.peers.signer.datagram(_ask(asker, to, number))
            for number in range(4 * HEARD_PER_NODE)
        ]
        dropped = heard.peers.dropped
        for data in sent_on:
            heard.peers._hear(hostile.address, data)
        assert heard.peers.dropped == dropped + len(sent_on)
        heard.peers._hear(asker.address, asker.peers.signer.datagram(_ask(asker, heard.node_id)))
        assert heard.peers.dropped == dropped + len(sent_on)


async def test_an_agent_that_was_set_back_to_an_older_build_is_heard_from_its_next_registration_on(
    tmp_path: Path,
) -> None:
    async with fleet(tmp_path, 2, LEASE_MS) as nodes:
        asker, heard = nodes
        for to, incarnation, is_heard in ((heard.node_id, 4, True), ("", 4, False), ("", 5, True)):
            dropped = heard.peers.dropped
            ask = PeerAsk(
                cluster_id="home",
                node_id=asker.node_id,
                incarnation=incarnation,
                nonce=bytes(NONCE_BYTES),
                to=NodeId(to),
            )
            heard.peers._hear(asker.address, asker.peers.signer.datagram(ask))
            assert heard.peers.dropped == dropped + (not is_heard)


@pytest.mark.parametrize("option", [0, socket.SO_REUSEADDR, socket.SO_REUSEPORT])
async def test_no_process_takes_the_port_of_an_agent_that_lives(
    tmp_path: Path, option: int
) -> None:
    """Else its datagrams would come from an address of the roster.

    The wildcard address is tried as well.
    """
    async with fleet(tmp_path, 1) as nodes:
        port = int(nodes[0].address.rpartition(":")[2])
        for host in ("127.0.0.1", "0.0.0.0"):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as thief:
                if option:
                    thief.setsockopt(socket.SOL_SOCKET, option, 1)
                with pytest.raises(OSError) as refused:
                    thief.bind((host, port))
                assert refused.value.errno == errno.EADDRINUSE


def _ask(node: Node, to: str = "", number: int = 0) -> PeerAsk:
    return PeerAsk(
        cluster_id="home",
        node_id=node.node_id,
        incarnation=1,
        nonce=number.to_bytes(NONCE_BYTES, "big"),
        to=NodeId(to),
    )
