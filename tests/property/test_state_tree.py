"""The tree of a state, kept up to date by the changes that facts report, has the same hash as a new
tree of the same state, along random histories.
"""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common import fold
from libs.common.agreement.tree import StateTree, differing_parts
from tests.history import History, copy, stamp_of, subject_of
from tests.property.test_commute import STEPS, valid

SEEDS = st.integers(0, 1 << 32)
# Facts between two hashes.
EVERY = 7


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_a_tree_that_follows_has_the_hash_of_a_new_one(seed: int) -> None:
    chance, cluster = Random(seed), History().cluster
    tree = StateTree(cluster)
    for number in range(1, 3 * STEPS):
        fact = valid(cluster, chance)
        change = fold.apply(cluster, fact, stamp_of(subject_of(fact), number, cluster.epoch))
        tree.note([fact], [change])
        tree.work(cluster, chance.randrange(3))
        if number % EVERY == 0:
            own, fresh = tree.hashed(cluster, number), StateTree(cluster).hashed(cluster, number)
            assert differing_parts(own, fresh) == [], fact
            loaded = copy(cluster)
            assert differing_parts(own, StateTree(loaded).hashed(loaded, number)) == []
