"""Random facts about devices: facts that gateways and nodes could append now, and invalid ones."""

from collections.abc import Iterator
from random import Random
from typing import Final

from libs.common import facts as f
from libs.common.devices import device_controls
from libs.common.facts import AnyFact
from libs.common.life import gpu_life
from libs.common.model import AttemptRef, GpuId, NodeId, attempt_of
from libs.common.state.cluster import Cluster

CONTROLS: Final = (device_controls.POWER, device_controls.RESET)
HEALTHS: Final = (gpu_life.DEGRADED, gpu_life.RESETTING, gpu_life.OFFLINE)


def by_gateways(cluster: Cluster, chance: Random) -> Iterator[AnyFact]:
    for uuid in cluster.gpus:
        yield f.GpuServiceSet(uuid=uuid, service=chance.choice(gpu_life.SERVICES))
        yield f.GpuControlRequested(
            uuid=uuid, control=chance.choice(CONTROLS), value=chance.choice(("", "300"))
        )


def by_nodes(cluster: Cluster, chance: Random) -> Iterator[AnyFact]:
    for view in cluster.gpus.values():
        node_id, uuid = view.node_id, view.gpu.uuid
        yield f.GpuFaulted(node_id=node_id, uuid=uuid, health=chance.choice(HEALTHS), reason="xid")
        yield f.GpuRecovered(node_id=node_id, uuid=uuid)
        jobs = tuple(attempt_of(key) for key in view.holds)
        yield f.GpuErrorSeen(
            node_id=node_id,
            uuid=uuid,
            error="xid 31",
            verdict="restart_job",
            source="driver",
            jobs=jobs,
        )
        for name, wish in view.controls.items():
            yield f.GpuControlled(
                node_id=node_id,
                uuid=uuid,
                control=name,
                value=wish.value,
                request=wish.request,
                outcome="done",
            )


def wild(
    chance: Random,
    node_id: NodeId,
    uuid: GpuId,
    word: str,
    number: int,
    jobs: tuple[AttemptRef, ...],
) -> tuple[AnyFact, ...]:
    control = chance.choice((*CONTROLS, word))
    return (
        f.GpuFaulted(node_id=node_id, uuid=uuid, health=word, reason=word),
        f.GpuRecovered(node_id=node_id, uuid=uuid),
        f.GpuErrorSeen(
            node_id=node_id, uuid=uuid, error=word, verdict=word, source=word, jobs=jobs
        ),
        f.GpuServiceSet(uuid=uuid, service=chance.choice((*gpu_life.SERVICES, word))),
        f.GpuControlRequested(uuid=uuid, control=control, value=word),
        f.GpuControlled(
            node_id=node_id, uuid=uuid, control=control, value=word, request=number, outcome=word
        ),
    )
