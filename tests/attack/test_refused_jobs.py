"""A node that refuses every job, on a real cluster: attempts come slower and slower, and the job
says why it waits.
"""

import asyncio
import os
from pathlib import Path

import pytest

from tests.chaos.cluster import running

# Time for which the node refuses the job. Without a wait it would see over 100 attempts.
LOOK_S = 6.0
# The first at once, the next when the node is no longer excluded.
ATTEMPTS_MAX = 4

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only an agent that is root runs jobs as other users"
)


async def test_a_job_that_its_node_refuses_is_not_tried_as_fast_as_the_node_can_refuse(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, nodes=1, gpus=1, MUSTER_JOB_USERS="*=no-such-user") as chaos:
        status, job = await chaos.try_once(
            "POST", "/v1/jobs", json={"command": ["true"], "gpus": 1}
        )
        assert status == 201, job
        await asyncio.sleep(LOOK_S)
        job = await chaos.get(f"/v1/jobs/{job['id']}")
        facts = await chaos.history(job["id"])
        assert job["attempt"] <= ATTEMPTS_MAX and len(facts) <= 20
        assert (job["state"], job["retries_used"]) == ("queued", 0)
        assert job["refusals"] >= 1 and "no-such-user" in job["refused_reason"]
        why = await chaos.get(f"/v1/jobs/{job['id']}/why")
        assert "no-such-user" in why["answer"] and "refused" in why["answer"]
