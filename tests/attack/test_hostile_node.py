"""One node's key harms that node only: a real cluster goes on under hostile commits, heartbeats and
garbage of one node.
"""

import json
from pathlib import Path
from typing import Final

import msgspec

from libs.common import subjects
from libs.common.messages import Heartbeat, Vitals
from libs.common.model import NodeId
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.connection_nats import connect
from libs.embedded.identity import seed_file
from libs.embedded.permissions import node_name
from tests.attack.fuzz import HONEST, HOSTILE, SERVICES, UNBOUNDED, fuzz
from tests.chaos.cluster import Chaos, running

COMMITS: Final = 600
GARBAGE: Final = (b"", b"hello", b"\x91" * 5_000, b"\xdd\xff\xff\xff\xff")


async def test_a_cluster_goes_on_under_hostile_commits_heartbeats_and_garbage(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, nodes=2, gpus=4, **UNBOUNDED) as chaos:
        await _garbage_is_dropped(chaos)
        figures = await fuzz(chaos, COMMITS)
        assert figures["ignored_of_node"] > COMMITS // 10
        await chaos.archived()
        assert chaos.verify()[0] == 0


async def _garbage_is_dropped(chaos: Chaos) -> None:
    """Heartbeats that name another node, and bytes that are no message, on every subject that a
    node may publish.
    """
    services = {name: chaos.ticket(name) for name in SERVICES}
    url = f"nats://127.0.0.1:{json.loads((chaos.state / 'cluster.json').read_text())['nats_port']}"
    client = await connect(
        [url], node_name(HOSTILE), seed_file(chaos.state / "keys", node_name(HOSTILE)).read_bytes()
    )
    beat = msgspec.msgpack.encode(Heartbeat(NodeId(HONEST), 1, 1, "", lease_epoch=1))
    own = (subjects.heartbeat(HOSTILE), subjects.desired(HOSTILE), subjects.roster(HOSTILE))
    asked = (subjects.ask_secrets(HOSTILE), subjects.ask_uploads(HOSTILE))
    for subject in (*own, *asked):
        for data in (*GARBAGE, beat):
            await client.publish(subject, data)
    await client.flush()
    await client.close()
    operator = await connect(
        [url], "operator", seed_file(chaos.state / "keys", "operator").read_bytes()
    )
    answer = await NatsBus(operator).request(subjects.ask_scheduler("vitals"), b"", 10.0)
    await operator.close()
    assert msgspec.msgpack.decode(answer, type=Vitals).dropped >= 2 * (len(GARBAGE) + 1)
    assert {name: chaos.ticket(name) for name in SERVICES} == services
