"""What an agent says of its node when it begins an incarnation."""

from collections.abc import Mapping, Sequence

from libs.common.facts import NodeRegistered
from libs.common.model import AttemptRef, Gpu, NodeId
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
    )
