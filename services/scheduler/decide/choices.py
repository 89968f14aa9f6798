"""The facts that record a choice of nodes and devices.

Pure.
"""

from typing import Final

from libs.common.facts import DevicesReserved, JobPlaced
from libs.common.model import JobId, Member
from libs.common.state.cluster import Job
from libs.common.state.ordering import SECOND_NS
from services.scheduler.placement.choose import Choice
from services.scheduler.state.state import State

NO_JOB: Final = JobId("")


def placement(state: State, job: Job, choice: Choice, lender: JobId = NO_JOB) -> JobPlaced:
    """Return the fact that places the job on this choice, perhaps on nodes that a waiting job lends
    it.

    Ranks are in order, each member names the incarnation it was decided for, and the first node
    gives one port.
    """
    port = state.ports.free(state.cluster, state.cluster.nodes[choice[0][0]].address)
    allocation = job.spec.allocation
    expires_ns = (
        state.wall_ns + allocation.expires_s * SECOND_NS
        if allocation is not None and allocation.expires_s
        else 0
    )
    return JobPlaced(
        job_id=job.job_id,
        attempt=job.attempt,
        members=members_of(state, choice),
        port=port,
        expires_ns=expires_ns,
        lender=lender,
    )


def members_of(state: State, choice: Choice) -> tuple[Member, ...]:
    """Return the members of the choice, by rank."""
    nodes = state.cluster.nodes
    return tuple(
        [
            Member(node_id, nodes[node_id].incarnation, rank, holds)
            for rank, (node_id, holds) in enumerate(choice)
        ]
    )


def reserve_devices(job: Job, attempt: int, state: State, choice: Choice) -> DevicesReserved:
    """Return the fact that reserves the choice for an attempt of the job."""
    return DevicesReserved(job_id=job.job_id, attempt=attempt, members=members_of(state, choice))
