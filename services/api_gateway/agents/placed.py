"""Checks which job an agent may ask about: its current attempt must have a live member on the
agent's own node.

The NATS server lets no node publish under another node's subject, so the node's name in the subject
is a proof. Tests: tests/integration/test_secrets.py and test_uploads.py.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from libs.common.errors import Refused
from libs.common.life import job_life
from libs.common.model import JobId, NodeId
from libs.common.state.cluster import Cluster, Job

# An agent may get its order before this gateway has folded the placement.
PLACED_WAIT_S: Final = 2.0
LOOK_S: Final = 0.02


async def placed(
    cluster: Callable[[], Cluster], job_id: JobId, attempt: int, node_id: NodeId
) -> Job:
    """Return the job. Raises Refused."""
    for _ in range(int(PLACED_WAIT_S / LOOK_S)):
        job = cluster().jobs.get(job_id)
        if job is not None and job.attempt == attempt and node_id in job.members:
            break
        await asyncio.sleep(LOOK_S)
    else:
        raise Refused(f"attempt {attempt} of {job_id} is not on node {node_id}")
    if job.members[node_id].state in job_life.MEMBER_OVER:
        raise Refused(f"attempt {attempt} of {job_id} is over on node {node_id}")
    return job
