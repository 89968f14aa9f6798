"""Random facts about resident data: those that gateways, the scheduler and the nodes could record
now, and invalid ones.
"""

from collections.abc import Iterator
from random import Random
from typing import Any

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.life import kept_life
from libs.common.model import GpuId, JobId, NodeId, standby_port
from libs.common.state.cluster import Cluster

REPORTS = (kept_life.MEASURED, kept_life.FILLING, kept_life.READY, kept_life.FAILED)


def by_gateways(cluster: Cluster, chance: Random) -> Iterator[AnyFact]:
    for name in cluster.models:
        yield f.ModelKeepRequested(
            model=name, tier=chance.choice(kept_life.TIERS), nodes=chance.randrange(3)
        )
    for kept in cluster.kept.values():
        yield f.ModelKeepDropped(model=kept.model, tier=kept.tier)


def by_scheduler(cluster: Cluster, chance: Random) -> Iterator[AnyFact]:
    for kept in cluster.kept.values():
        for node_id in cluster.nodes:
            entry = kept.entries.get(node_id)
            names: Any = {"model": kept.model, "tier": kept.tier, "node_id": node_id}
            if entry is None or entry.state == kept_life.EVICTED:
                number = entry.number + 1 if entry is not None else 1
                yield f.KeptPlaced(**names, request=kept.request, number=number)
                continue
            yield f.KeptEvicted(**names, request=kept.request, reason="room")
            if (entry.state, "kept.granted") in kept_life.KEPT_LIFE:
                yield f.KeptGranted(
                    **names,
                    request=kept.request,
                    host_bytes=chance.choice((0, 1 << 20)),
                    gpu_bytes=dict.fromkeys(cluster.nodes[node_id].gpus[:1], 1 << 20),
                )


def by_nodes(cluster: Cluster, chance: Random) -> Iterator[AnyFact]:
    for kept in cluster.kept.values():
        for entry in kept.entries.values():
            # A node reports `ready` only after the grant that it waited for.
            state = chance.choice(REPORTS)
            if (entry.state, f"kept.observed:{state}") not in kept_life.KEPT_LIFE:
                continue
            yield f.KeptObserved(
                node_id=entry.node_id,
                model=kept.model,
                tier=kept.tier,
                request=kept.request,
                number=entry.number,
                state=state,
                size_bytes=chance.randrange(1 << 20),
                restore_ms=chance.randrange(9),
            )
    for job in cluster.jobs.values():
        for member in job.members.values() if job.spec.serve is not None else ():
            yield f.StandbyPromoted(
                job_id=job.job_id,
                attempt=job.attempt,
                node_id=member.node_id,
                number=member.promotions + 1,
                port=standby_port(job.port),
            )


def wild(
    chance: Random, model: str, node_id: NodeId, uuid: GpuId, job_id: JobId, word: str, number: int
) -> tuple[AnyFact, ...]:
    tier = chance.choice((*kept_life.TIERS, word))
    names: Any = {"model": model, "tier": tier, "node_id": node_id, "request": chance.randrange(99)}
    return (
        f.ModelKeepRequested(model=model, tier=tier, nodes=number, size_bytes=number, weights=word),
        f.ModelKeepDropped(model=model, tier=tier),
        f.KeptPlaced(**names, number=chance.randrange(3)),
        f.KeptGranted(**names, host_bytes=number, gpu_bytes={uuid: number}),
        f.KeptEvicted(**names, reason=word),
        f.KeptObserved(
            **names,
            number=chance.randrange(3),
            state=chance.choice((*REPORTS, word)),
            size_bytes=number,
            files={word: word},
        ),
        f.StandbyPromoted(
            job_id=job_id, attempt=1, node_id=node_id, number=number, port=number % (1 << 17)
        ),
    )
