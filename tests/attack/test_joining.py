"""A hostile machine joins, or a hostile gateway says that it did: honest machines still join, and
removed ones lose access.

A real nats-server under its keeper; the log's rows are what a gateway without any check at `POST
/join` records.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from libs.common import facts as f
from libs.common.errors import Unavailable
from libs.common.messages.admission import Admitted
from libs.common.model import NodeId
from libs.common.transport.bus_nats import NatsBus
from libs.embedded import identity, nats_config, permissions, server_file, servers
from libs.embedded.permissions import Fleet
from services.api_gateway.agents.admission import Admission
from services.api_gateway.intents.membership_intents import hash_secret
from tests.history import History
from tests.integration.keeper_world import JOINED_S, Container

REFUSED_S = 1.0
FAR, GONE = "far", "gone"


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    found = Container(tmp_path)
    yield found
    found.stop()


class Cluster:
    """The log as `history`, and a gateway that tells the server of it."""

    def __init__(self, container: Container) -> None:
        self.container = container
        self.history = History()
        self.history.cluster.timing = self.history.cluster.timing.__class__(100, 1_000, 100, 300)

    async def tell(self) -> None:
        """As one of the gateways; connects again if the server was restarted."""
        self.client = await self.container.connect(permissions.gateway_name("a"))
        self.admission = Admission(lambda: self.history.cluster, NatsBus(self.client))
        await self.admission.listen()

    def join(self, name: str, key: str) -> None:
        node_id = NodeId(name)
        self.history.say(f.NodeInvited(node_id=node_id, secret_hash=hash_secret("s"), expires_ns=1))
        self.history.say(
            f.NodeJoined(node_id=node_id, secret_hash=hash_secret("s"), public_key=key)
        )

    def remove(self, name: str) -> None:
        self.history.say(f.NodeRemovalRequested(node_id=NodeId(name)))
        self.history.say(f.NodeRemoved(node_id=NodeId(name)))

    def key(self, name: str) -> str:
        return identity.public_key(self.container.keys, permissions.node_name(name))

    async def agreed(self) -> bool:
        return await self.admission.agreed(self.history.cluster.seq, 2 * JOINED_S)

    async def enters(self, name: str) -> bool:
        try:
            client = await self.container.connect(permissions.node_name(name), REFUSED_S)
        except Unavailable:
            return False
        await client.close()
        return True


@pytest.fixture
async def cluster(container: Container) -> AsyncIterator[Cluster]:
    found = Cluster(container)
    await found.tell()
    yield found
    await found.client.close()


HOSTILE = {
    "malformed": lambda cluster: "U" + "A" * 55,
    "empty-of-sense": lambda cluster: 'U"}]}, accounts { X',
    "scheduler-s": lambda cluster: identity.public_key(cluster.container.keys, "scheduler"),
    "twin": lambda cluster: cluster.key(GONE),
}


async def test_a_bad_key_in_the_log_keeps_no_machine_out_and_no_removed_one_in(
    cluster: Cluster,
) -> None:
    cluster.join(GONE, cluster.key(GONE))
    assert await cluster.agreed()
    assert await cluster.enters(GONE)
    for name, key in HOSTILE.items():
        cluster.join(name, key(cluster))
    cluster.join(FAR, cluster.key(FAR))
    assert await cluster.agreed()
    assert await cluster.enters(FAR)
    assert {name for name in HOSTILE if cluster.admission.refusal(name)} >= {
        "malformed",
        "empty-of-sense",
        "scheduler-s",
    }
    for name in ("twin", GONE):
        cluster.remove(name)
    assert await cluster.agreed()
    assert await cluster.enters(FAR)
    assert not await cluster.enters(GONE)


async def test_a_server_starts_with_a_bad_key_in_what_it_kept(cluster: Cluster) -> None:
    cluster.join("malformed", "U" + "A" * 55)
    cluster.join(FAR, cluster.key(FAR))
    assert await cluster.agreed()
    await cluster.client.close()
    cluster.container.stop()
    cluster.container.start()
    await cluster.tell()
    assert await cluster.enters(FAR)


async def test_a_name_that_is_a_pattern_gives_no_node_another_s_subjects(tmp_path: Path) -> None:
    key = identity.public_key(tmp_path, "node-evil")
    names = ("*", ">", "1.>", "far\n", "A", "")
    kept, refused = nats_config.accepted(
        Fleet(nodes=("1",)), {}, Admitted(dict.fromkeys(names, key))
    )
    assert kept.nodes == {}
    assert set(refused) == set(names)


def test_a_row_that_only_the_server_refuses_is_found_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our rules may be laxer than the server's: the server itself checks the file, so it stays
    valid.
    """
    monkeypatch.setattr("libs.common.safety.public_nkey.fault", lambda _: "")
    fleet = Fleet(nodes=("1",))
    keys = {name: identity.public_key(tmp_path / "keys", name) for name in permissions.names(fleet)}
    rows = {
        f"n-{number}": identity.public_key(tmp_path / "keys", f"n-{number}") for number in range(5)
    } | {"bad": "U" + "A" * 55}
    server = nats_config.Server(
        "nats-1", servers.free_ports(1)[0], str(tmp_path / "store"), 1 << 28
    )
    path = tmp_path / "nats.conf"
    refused = server_file.write(
        binary=servers.binary(),
        path=path,
        server=server,
        fleet=fleet,
        public_keys=keys,
        found=Admitted(rows, ("n-0",)),
    )
    assert set(refused) == {"bad", "n-0"}
    assert server_file.fault(servers.binary(), tmp_path, path.read_text()) == ""
    assert all((key in path.read_text()) == (name not in refused) for name, key in rows.items())


def test_a_state_directory_with_letters_beyond_ascii_is_read_by_the_server(tmp_path: Path) -> None:
    fleet = Fleet(nodes=("1",))
    servers.write_config(
        tmp_path,
        nats_config.Server("nats-1", 1, str(tmp_path / 'd\u00e9p\u00f4t "x"'), 1 << 28),
        fleet,
    )
    assert (
        server_file.fault(
            servers.binary(), tmp_path, servers.config_file(tmp_path, "nats-1").read_text()
        )
        == ""
    )
