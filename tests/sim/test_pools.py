"""The memory of pools is freed on every machine, also where no agent comes back to release it."""

import asyncio

from libs.common import facts as f
from libs.common.model import JobId, JobSpec, NodeId
from libs.common.state.cluster import is_removed
from services.node_agent.memory.pools import RETURNED
from tests.sim.broker import ORPHAN_S
from tests.sim.checkers import ALL
from tests.sim.faults import AGENT_DEAD, LONG_LEASE_MS, REMOVED, Blow, Plan
from tests.sim.loop import VirtualLoop, run
from tests.sim.operators import FOR_EVER
from tests.sim.pools import GIB
from tests.sim.test_gossip import recorded
from tests.sim.weather import Rates
from tests.sim.workload import Act
from tests.sim.world import World

# The only node that is large enough for the job.
NODE = "n2"
JOB_MS = 3_000
DIES_S = 2.0
# The job and, without an agent, its broker have ended by then.
ENDED_S = DIES_S + JOB_MS / 1e3 + 2 * ORPHAN_S


def after_one_job(*blows: Blow) -> World:
    """One run whose only job has a pool on each of four devices, and in which every rule holds."""
    command = ("simulated", str(JOB_MS), "0", "polite")
    spec = JobSpec(command=command, gpus=4, pool_bytes=40 * GIB, requeue=False)
    submitted = f.JobSubmitted(job_id=JobId("job-0"), spec=spec, user="u")

    left: list[int] = []

    async def lived() -> World:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        plan = Plan(
            seed=0,
            rates=Rates(),
            blows=blows,
            storm_s=60.0,
            skew_max_s=0.0,
            nodes=(1, 1, 4),
            lease_ms=LONG_LEASE_MS,
        )
        world = World(loop, plan, ALL)
        world.acts[:] = [Act(0.5, 0, (submitted,))]
        loop.call_at(ENDED_S, lambda: left.extend(world.machines[NODE].brokers[-1].memory))
        await world.run()
        return world

    world = run(lived())[0]
    assert world.found is None, world.found
    assert not left, f"{len(left)} grants are left at {ENDED_S} s"
    return world


def test_memory_of_an_agent_that_never_comes_back_ends_with_its_broker() -> None:
    """The memory of a device cannot be revoked when its holder ends, and no agent releases it."""
    world = after_one_job(
        Blow(DIES_S, AGENT_DEAD, f"agent-{NODE}", FOR_EVER), Blow(DIES_S + 1.0, REMOVED, NODE, 0.0)
    )
    broker = world.machines[NODE].brokers[-1]
    assert broker.begun == 1 and not broker.memory
    assert is_removed(world.reference, NodeId(NODE))
    assert recorded(world, f.JobReleased) == []


def test_an_agent_that_comes_back_after_its_broker_ended_returns_the_pool() -> None:
    """The pool's file names the attempt. All memory of the pool counts as used until then."""
    world = after_one_job(Blow(DIES_S, AGENT_DEAD, f"agent-{NODE}", ENDED_S))
    [released] = recorded(world, f.JobReleased)
    assert isinstance(released, f.JobReleased)
    assert released.checks["pools"] == RETURNED
    assert not world.machines[NODE].brokers[-1].books.attempts
