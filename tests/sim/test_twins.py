"""The simulated parts of an agent take the arguments that the real ones take.

The agent's type of a part is the real class, so the type checker does not compare them.
"""

import inspect

import pytest

from services.node_agent.directories.job_directories import JobDirectories
from services.node_agent.memory.pools import Pools
from services.node_agent.resident.resident import Resident
from tests.sim.pools import SimPools
from tests.sim.residents import SimResident
from tests.sim.supervisors import SimSupervisors

TWINS = ((SimPools, Pools), (SimResident, Resident), (SimSupervisors, JobDirectories))


def arguments(method: object) -> list[str]:
    assert callable(method)
    return list(inspect.signature(method).parameters)


@pytest.mark.parametrize(("twin", "real"), TWINS)
def test_a_simulated_part_takes_the_arguments_of_the_real_one(twin: type, real: type) -> None:
    methods = [
        name
        for name in vars(twin)
        if not name.startswith("_") and inspect.isfunction(getattr(real, name, None))
    ]
    assert methods
    assert {name: arguments(getattr(twin, name)) for name in methods} == {
        name: arguments(getattr(real, name)) for name in methods
    }
