"""The tree of a state, kept up to date by the changes that facts report, has the same hash as a new
tree of the same state, along random histories.
"""

from collections.abc import Iterator
from random import Random
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common import fold, prices
from libs.common.agreement.tree import Bucket, StateTree, differing_parts
from libs.common.facts import AnyFact
from libs.common.folds import (
    claim_fold,
    device_fold,
    diagnosis_fold,
    fabric_fold,
    job_fold,
    node_fold,
    order_fold,
    usage_fold,
)
from libs.common.state import arrivals, image_nodes, locks, plugins
from libs.common.state.cluster import Cluster
from libs.common.subjects import NODE_KIND, WRITER_OF
from tests.history import History, copy, stamp_of, subject_of
from tests.property.invalid_facts import wild
from tests.property.test_commute import STEPS, valid

SEEDS = st.integers(0, 1 << 32)
# Facts between two comparisons with a state that was loaded.
EVERY = 7
EXAMPLES: Final = 30
INVALID_PART: Final = 0.1
# Bounds on what the state keeps, so small that random histories pass them.
BOUNDS: Final = (
    (job_fold, "ENDED_JOBS_KEPT", 2),
    (device_fold, "ERRORS_KEPT", 1),
    (diagnosis_fold, "DIAGNOSES_KEPT", 1),
    (fabric_fold, "PAIRS_KEPT", 1),
    (fabric_fold, "ENDED_KEPT", 1),
    (fabric_fold, "DRAINS_KEPT", 1),
    (node_fold, "LINKS_KEPT", 1),
    (node_fold, "LOSSES_KEPT", 1),
    (claim_fold, "BIRTHS_MAX", 2),
    (claim_fold, "UUIDS_MAX", 3),
    (order_fold, "RUNS_MAX", 2),
    (usage_fold, "KEYS_MAX", 1),
    (prices, "KEPT_MAX", 1),
    (locks, "ENDED_KEPT", 1),
    (plugins, "DISABLED_MAX", 1),
    (arrivals, "KINDS_MAX", 1),
    (image_nodes, "IMAGES_MAX", 1),
    (image_nodes, "NODES_MAX", 1),
)


@pytest.fixture(scope="module", autouse=True)
def _small_bounds() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in BOUNDS:
            patch.setattr(module, name, value)
        yield


def chosen(cluster: Cluster, chance: Random) -> AnyFact:
    """Return a valid fact of any writer, or any fact of a node: a node may record what it likes."""
    if chance.random() < INVALID_PART:
        fact = wild(chance)
        if WRITER_OF[type(fact)] == NODE_KIND:
            return fact
    return valid(cluster, chance)


def caught_up(tree: StateTree, cluster: Cluster) -> dict[str, list[Bucket]]:
    """Return the digests of all entries of the large parts."""
    tree.catch_up(cluster)
    return {name: part.buckets for name, part in tree.parts.items()}


@settings(max_examples=EXAMPLES, deadline=None)
@given(SEEDS)
def test_a_tree_that_follows_equals_a_new_one_after_every_fact(seed: int) -> None:
    chance, cluster = Random(seed), History().cluster
    tree = StateTree(cluster)
    for number in range(1, 3 * STEPS):
        fact = chosen(cluster, chance)
        change = fold.apply(cluster, fact, stamp_of(subject_of(fact), number, cluster.epoch))
        tree.note([fact], [change])
        tree.work(cluster, chance.randrange(3))
        tree.rework(cluster, chance.randrange(3))
        assert caught_up(tree, cluster) == caught_up(StateTree(cluster), cluster), fact
        if number % EVERY == 0:
            own, loaded = tree.hashed(cluster, number), copy(cluster)
            assert differing_parts(own, StateTree(loaded).hashed(loaded, number)) == []
