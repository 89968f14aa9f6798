"""What an agent says of its node when it begins an incarnation."""

import asyncio
from collections.abc import Mapping, Sequence

from libs.common.errors import Unavailable
from libs.common.facts import NodeRegistered
from libs.common.messages import Lease
from libs.common.model import AttemptRef, Gpu, NodeId
from libs.common.transport.writer import was_stored
from services.node_agent.device_holders import isolation
from services.node_agent.drivers import Driver
from services.node_agent.peers import Peers
from services.node_agent.supervision_protocol import Machine


def registration(
    machine: Machine,
    incarnation: int,
    gpus: Sequence[Gpu],
    attempts: Sequence[AttemptRef],
    driver: Driver,
    directory: str,
    peers: Peers | None,
    more: Mapping[str, str],
) -> NodeRegistered:
    """`more` is said of its isolation beside what its machine has."""
    return NodeRegistered(
        node_id=NodeId(machine.node_id),
        incarnation=incarnation,
        address=machine.address,
        gpus=tuple(gpus),
        attempts=tuple(attempts),
        boot_id=machine.boot_id,
        version=machine.version,
        simulated=driver.simulated,
        directory=directory,
        peer_address=peers.channel.address if peers is not None else "",
        peer_key=peers.signer.public if peers is not None else "",
        cpus_milli=machine.cpus_milli,
        memory_bytes=machine.memory_bytes,
        labels=machine.labels,
        rack=machine.rack,
        spine=machine.spine,
        sockets=machine.sockets,
        isolation={**isolation(machine.isolation, driver, gpus), **more},
        tells_health=True,
        takes_controls=True,
        drivers=dict(driver.versions),
    )


def check_stands(lease: Lease, stored: asyncio.Future[int]) -> None:
    """Check that the cluster goes by this process's registration. `stored` becomes the registration's commit.

    Another process with this node's key may have used the incarnation first. Readers then ignore this registration, and the
    cluster goes by the devices and addresses of the other one. The next start takes a higher incarnation.

    Raises Unavailable if an earlier registration stands although the scheduler has read this one.
    """
    own = stored.result() if stored.done() and was_stored(stored) else 0
    if own and lease.seq >= own and 0 < lease.registered_seq < own:
        text = f"incarnation {lease.incarnation} was registered before, by commit {lease.registered_seq}"
        raise Unavailable(f"{text}: start the agent again; if this repeats, give the node another key")
