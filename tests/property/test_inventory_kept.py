"""The stored inventory of a node equals a newly computed one after any facts.

No change of a node is missed.
"""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common import fold
from libs.common.state.cluster import Cluster
from libs.common.state.inventory import Stocks
from tests.history import stamp_of, subject_of
from tests.property.test_commute import valid


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32))
def test_stored_inventory_equals_a_newly_computed_one(seed: int) -> None:
    chance, cluster, stocks = Random(seed), Cluster(), Stocks()
    for number in range(1, 80):
        fact = valid(cluster, chance)
        stocks.follow(
            cluster, (fold.apply(cluster, fact, stamp_of(subject_of(fact), number, cluster.epoch)),)
        )
        assert stocks.answer(cluster) == Stocks().answer(cluster)
