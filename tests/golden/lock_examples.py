"""Examples of facts about locks, hashes of the state, elements, diagnoses and notifications, for
`examples.py`.
"""

from typing import Final

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import JobId, NodeId
from tests.golden.notification_examples import NOTIFICATIONS

TENANT: Final = "physics"

STATE_AND_LOCKS: Final[tuple[AnyFact, ...]] = (
    f.StateHashed(seq=40, schema="ab" * 16, parts={"jobs": b"\1" * 16, "nodes": b"\2" * 16}),
    f.LockRequested(
        tenant=TENANT, lock="data", holder="h1", ttl_ms=30_000, wait_ms=300_000, user="ada"
    ),
    f.LockRenewRequested(tenant=TENANT, lock="data", holder="h1"),
    f.LockReleaseRequested(tenant=TENANT, lock="data", holder="h1", user="ada"),
    f.LockGranted(tenant=TENANT, lock="data", holder="h1", token=7, expires_ns=1_800_000_000),
    f.LockRenewed(
        tenant=TENANT, lock="data", holder="h1", token=7, asked=40, expires_ns=1_900_000_000
    ),
    f.LockFreed(tenant=TENANT, lock="data", holder="h1", token=7, reason="expired"),
    f.ElementsEnded(
        job_id=JobId("job-1_0-99"),
        attempt=2,
        node_id=NodeId("node-1"),
        first=40,
        runs=((30, 0), (1, 265)),
        begun=72,
    ),
    f.JobDiagnosed(
        job_id=JobId("job-1"),
        attempt=1,
        verdict="apart",
        sentence="7 of 8 ranks wait for rank 6 on node-2",
        cause="lock",
        rank=6,
        node_id=NodeId("node-2"),
        others=1,
        places=("0-5,7: all_reduce at step (train.py:40)",),
        automatic=True,
        user="ada",
    ),
    *NOTIFICATIONS,
)
