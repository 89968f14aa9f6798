"""Apply facts about preemption to jobs: one function per kind, named after the kind.

Pure and total, called by `fold.apply` only. Checkpoints are stored whatever happened to the attempt
meanwhile, so that they commute with the scheduler's decisions.
"""

from libs.common import facts as f
from libs.common.change import IGNORED, Change, Stamp
from libs.common.life import job_life
from libs.common.model import NodeId
from libs.common.state.cluster import Cluster, Job, was_on


def reserved(cluster: Cluster, fact: f.DevicesReserved, stamp: Stamp) -> Change:
    """Reserve devices for a job that waits or will wait again."""
    job = cluster.jobs.get(fact.job_id)
    known = all(member.node_id in cluster.nodes for member in fact.members)
    if (
        job is None
        or job.state not in (job_life.QUEUED, *job_life.ON_NODES)
        or fact.attempt < job.attempt
        or not known
    ):
        return IGNORED
    before = free(cluster, job)
    job.preemption.reserved = fact.members
    for member in fact.members:
        cluster.nodes[member.node_id].reserved[job.job_id] = member
    return Change(
        (job.job_id,), tuple(dict.fromkeys((*before, *(member.node_id for member in fact.members))))
    )


def free(cluster: Cluster, job: Job) -> tuple[NodeId, ...]:
    """End the job's reservation of devices, and return the nodes that had some."""
    nodes = tuple(member.node_id for member in job.preemption.reserved)
    for node_id in nodes:
        cluster.nodes[node_id].reserved.pop(job.job_id, None)
    job.preemption.reserved = ()
    return nodes


def checkpointed(cluster: Cluster, fact: f.JobCheckpointed, stamp: Stamp) -> Change:
    job = cluster.jobs.get(fact.job_id)
    if job is None or not was_on(job, fact.node_id):
        return IGNORED
    # A checkpoint cannot be later than its record: a time in the future would make the job the
    # cheapest one to preempt for ever.
    kept, at_ns = job.preemption, min(fact.at_ns or stamp.at_ns, stamp.at_ns)
    if at_ns > kept.checkpointed_ns:  # a restarted agent repeats the report
        kept.checkpoints, kept.checkpointed_ns = kept.checkpoints + 1, at_ns
    if fact.asked:
        kept.saved = max(kept.saved, fact.attempt)
    return Change((fact.job_id,))
