"""The registration of an agent, cut to the bounds that every reader applies (`bounds.py`).

Readers ignore a registration over these bounds, so the agent leaves out the excess and reports it.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

from msgspec.structs import replace

from libs.common.bounds import COUNTS
from libs.common.devices.means import lost
from libs.common.errors import Unavailable
from libs.common.facts import NodeFact, NodeRegistered
from libs.common.messages import Lease
from libs.common.model import AttemptRef, Gpu, NodeId
from libs.common.quantities import counted
from libs.common.transport.writer import was_stored
from services.node_agent.core.decide import watchdog_fact
from services.node_agent.core.observations import GuardChanged
from services.node_agent.core.state import State, accounted
from services.node_agent.device_work import DeviceWork
from services.node_agent.devices.device_holders import isolation
from services.node_agent.directories.protocol import Machine, Memory, Watchdog
from services.node_agent.drivers import Driver
from services.node_agent.fabric.probes.prober import FabricProber
from services.node_agent.health import lost_devices
from services.node_agent.jobs.means import Means
from services.node_agent.peers.peers import Peers

# Parts of a registration that may be cut. The attempts may not: the fold ends those that are not
# named.
CUT: Final = ("gpus", "labels", "isolation", "sockets", "drivers", "absent")

# A key of NodeRegistered.isolation: the lease watchdog.
WATCHDOG: Final = "watchdog"

logger = logging.getLogger(__name__)


async def registration_facts(
    machine: Machine,
    state: State,
    devices: DeviceWork,
    memory: Memory,
    means: Means,
    peers: Peers | None,
    now_ns: int,
    prober: FabricProber,
    watchdog: Watchdog,
) -> list[NodeFact]:
    """Return the facts of a registration: the node, its watchdog if that is missing or if a
    hardware watchdog is armed, and the troubles of its devices.
    """
    state.guard = state.guard_recorded = GuardChanged(watchdog.missing(), watchdog.armed_ms())
    guarding = [watchdog_fact(state)] if state.guard != GuardChanged() else []
    fact = registration(
        machine,
        incarnation=state.incarnation,
        gpus=devices.inventory,
        attempts=accounted(state),
        driver=devices.driver,
        directory=await memory.directory(),
        peers=peers,
        more={WATCHDOG: lost(watchdog.lacking()), **means.isolation(devices.inventory)},
    )
    fact = replace(fact, fabric_address=prober.address)
    logger.info(
        "node %s, incarnation %d, %d devices, %d attempts",
        machine.node_id,
        state.incarnation,
        len(devices.inventory),
        len(fact.attempts),
    )
    troubles = await lost_devices.registration_facts(
        driver=devices.driver,
        inventory=devices.inventory,
        state=state,
        memory=memory,
        now_ns=now_ns,
    )
    return [fact, *guarding, *troubles]


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
    """Return the NodeRegistered fact. `more` adds to the isolation that the machine has."""
    fact = NodeRegistered(
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
        transport=machine.transport,
        transport_why=machine.transport_why,
        link_address=machine.link_address,
        sockets=machine.sockets,
        isolation={**isolation(machine.isolation, driver, gpus), **more},
        tells_health=True,
        takes_controls=True,
        keeps=machine.keeps,
        fence_ms=machine.fence_ms,
        drivers=dict(driver.versions),
        absent=tuple(uuid for uuid, each in driver.absent.items() if each.lost),
    )
    fact = within(fact)
    for words in fact.left_out:
        logger.error("node %s registers without %s", machine.node_id, words)
    return fact


def within(fact: NodeRegistered) -> NodeRegistered:
    """Return the registration cut to the bounds of readers. `left_out` names what was cut."""
    gpus = tuple(_cut_profiles(gpu) for gpu in fact.gpus)
    cut = sum(a is not b for a, b in zip(gpus, fact.gpus, strict=True))
    left_out = (
        [f"MIG profiles of {counted(cut, 'GPU')}: at most {COUNTS['mig_profiles']} are taken"]
        if cut
        else []
    )
    changed: dict[str, Any] = {"gpus": gpus} if cut else {}
    for name in CUT:
        found, most = changed.get(name, getattr(fact, name)), COUNTS[name]
        if len(found) > most:
            changed[name] = (
                dict(islice(found.items(), most)) if isinstance(found, dict) else found[:most]
            )
            left_out.append(f"{len(found) - most} of {len(found)} {name}: at most {most} are taken")
    return replace(fact, **changed, left_out=tuple(left_out)) if left_out else fact


def _cut_profiles(gpu: Gpu) -> Gpu:
    most = COUNTS["mig_profiles"]
    return (
        replace(gpu, mig_profiles=gpu.mig_profiles[:most]) if len(gpu.mig_profiles) > most else gpu
    )


def fenced_words(machine: Machine, subject: str, peers: Peers | None, why: object) -> str:
    """Return the message of an agent that ends because another process wrote to its
    node's subject.
    """
    key = f" with key {peers.signer.public}" if peers is not None else ""
    return (
        f"another process wrote facts of node {machine.node_id} to {subject}{key} ({why}). "
        "The jobs here were ended. "
        "If another machine has the same MUSTER_NODE_ID, give each its own. If none has, "
        "the node's key was copied: run "
        f"'muster node remove {machine.node_id}', and add this machine under another name"
    )


def check_stands(lease: Lease, stored: asyncio.Future[int]) -> None:
    """Check that this process's registration is in force.

    `stored` becomes the registration's commit.

    Another process with this node's key may have used the incarnation first. Readers then ignore
    this registration, and the cluster goes by the devices and addresses of the other one. The next
    start takes a higher incarnation.

    Raises Unavailable if an earlier registration stands although the scheduler has read this one.
    """
    own = stored.result() if stored.done() and was_stored(stored) else 0
    if own and lease.seq >= own and 0 < lease.registered_seq < own:
        text = (
            f"incarnation {lease.incarnation} was registered before, by commit "
            f"{lease.registered_seq}"
        )
        raise Unavailable(
            f"{text}: start the agent again; if this repeats, give the node another key"
        )
