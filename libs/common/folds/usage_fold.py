"""Apply facts about the use of models to replicas: what each key used of an attempt, until
quota has charged it.

Pure and total, called by `fold.apply` only. Late reports about a charged attempt change nothing, so
the order of gateways' and quota's facts does not matter.
"""

from typing import Final

from libs.common import facts as f
from libs.common.change import Change, Stamp
from libs.common.state.cluster import Cluster, Job

# Keys that are counted apart for one attempt. The use of further ones counts together.
KEYS_MAX: Final = 500
OTHERS: Final = "  "


def model_used(cluster: Cluster, fact: f.ModelUsed, stamp: Stamp) -> Change:
    for use in fact.uses:
        job = cluster.jobs.get(use.job_id)
        if job is not None and job.charged < use.attempt and use.share_ms > 0:
            _add(job, use)
    return Change()


def _add(job: Job, use: f.ModelUse) -> None:
    of_attempt = job.used.setdefault(use.attempt, {})
    key = f"{use.tenant} {use.user} {use.key_id}"
    if key not in of_attempt and len(of_attempt) >= KEYS_MAX:
        key = OTHERS
    of_attempt[key] = of_attempt.get(key, 0) + use.share_ms


def charged(job: Job) -> None:
    """Forget what was used of charged attempts."""
    job.used = {attempt: used for attempt, used in job.used.items() if attempt > job.charged}
