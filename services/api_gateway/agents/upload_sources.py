"""Chooses whether a node fetches an upload from another node, waits for one, or asks a gateway.

Pure. Nodes that run a job with the same upload of the same tenant have it. While none has started
one, the first nodes in a fixed order take it from a gateway, and the others wait for them. So
sources multiply, and no gateway needs to know who reads where. Tests:
tests/unit/test_upload_sources.py.
"""

from collections.abc import Collection, Iterable
from hashlib import sha256
from itertools import islice
from typing import Final, NamedTuple

from libs.common.life import job_life
from libs.common.model import JobId, NodeId
from libs.common.state.cluster import Cluster, Job
from services.api_gateway.agents.node_sources import nearest, takes_links

# Nodes that take an upload from gateways while no other node has it.
SEEDS: Final = 2
# Jobs with the same upload that one answer looks at.
RELATIVES_MAX: Final = 1_024
HAVE: Final = (job_life.STARTED, job_life.FINISHED)


class Spread(NamedTuple):
    """`sources` have the upload, the nearest first. `is_seed`: the node need not wait for one."""

    sources: list[NodeId]
    is_seed: bool


def relatives(cluster: Cluster, job: Job, known: Iterable[JobId]) -> list[Job]:
    """Return the jobs with the upload of a job: itself, its array's other elements, and `known`."""
    array = cluster.jobs.get(job.array) if job.array else None
    siblings = array.elements.alive if array is not None and array.elements is not None else ()
    found = dict.fromkeys([job.job_id, *known])
    found |= dict.fromkeys(islice(siblings, RELATIVES_MAX))
    jobs = (cluster.jobs.get(each) for each in found)
    same = (job.tenant, job.spec.upload)
    return [each for each in jobs if each and (each.tenant, each.spec.upload) == same]


def spread(
    cluster: Cluster, jobs: Iterable[Job], node_id: NodeId, avoided: Collection[NodeId]
) -> Spread:
    """Return from where `node_id` gets the upload of these jobs."""
    have, coming = dict[NodeId, None](), dict[NodeId, None]()
    for job in jobs:
        for each, member in job.members.items():
            if each in (node_id, *avoided) or not takes_links(cluster, each):
                continue
            if member.state in HAVE:
                have[each] = None
            elif member.state == job_life.PLACED:
                coming[each] = None
    if have:
        return Spread(nearest(cluster, node_id, have), is_seed=False)
    first = sorted([node_id, *coming], key=lambda each: sha256(each.encode()).digest())
    return Spread([], is_seed=node_id in first[:SEEDS])
