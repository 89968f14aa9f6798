"""Two schedulers that begin in the same moment: the log takes one term, and the one that it refused disturbs nothing."""

import pytest

from libs.common import facts as f
from tests.sim.checkers import ALL
from tests.sim.faults import Plan
from tests.sim.loop import run
from tests.sim.weather import Rates
from tests.sim.world import _run


@pytest.mark.parametrize("seed", range(8))
def test_two_that_begin_together_make_one_term(seed: int) -> None:
    world, _ = run(_run(Plan(seed, Rates(), (), 40.0, 0.0, (2, 2, 4, 2)), ALL))
    assert world.found is None
    terms = [fact for entry in world.stream.entries for fact in f.decode(entry.data).facts if isinstance(fact, f.TermBegan)]
    assert len(terms) == 1
