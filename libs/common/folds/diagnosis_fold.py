"""Apply JobDiagnosed to a job: keep the last diagnoses.

Pure and total, called by `fold.apply` only.
"""

from libs.common import facts as f
from libs.common.change import IGNORED, Change, Stamp
from libs.common.state.cluster import Cluster
from libs.common.state.diagnosis import DIAGNOSES_KEPT, Diagnosis


def diagnosed(cluster: Cluster, fact: f.JobDiagnosed, stamp: Stamp) -> Change:
    job = cluster.jobs.get(fact.job_id)
    # A diagnosis may be recorded just after the scheduler began the next attempt.
    if job is None or fact.attempt > job.attempt:
        return IGNORED
    last = Diagnosis(
        attempt=fact.attempt,
        verdict=fact.verdict,
        sentence=fact.sentence,
        cause=fact.cause,
        rank=fact.rank,
        node_id=fact.node_id,
        others=fact.others,
        places=fact.places,
        automatic=fact.automatic,
        user=fact.user,
        at_ns=stamp.at_ns,
    )
    job.diagnoses = (*job.diagnoses, last)[-DIAGNOSES_KEPT:]
    return Change((fact.job_id,))
