"""`muster why` quotes the measurement behind a gang's rack."""

from itertools import combinations

from libs.common.model import JobId
from libs.common.state.fabric import pair_key
from services.scheduler.explain.explain import explain
from tests.given import waiting
from tests.unit.fabric_world import FAST, FabricWorld
from tests.unit.scheduler_decisions import decisions, hear

JOB = JobId("gang")
QUOTE = (
    "rack m1 was measured 1.9x faster within than to n05, its nearest node outside, at 00:00 UTC"
)


def in_two_racks() -> FabricWorld:
    """Return six nodes of which three and three are near each other; n05 is the nearest outside."""
    given = FabricWorld(6)
    racks = {name: index // 3 for index, name in enumerate(given.names)}
    given.links = {
        pair_key(a, b): FAST * (10 if b == "n05" else 9) // 19
        for a, b in combinations(given.names, 2)
        if racks[a] != racks[b]
    }
    given.end()
    return given


def test_a_running_gang_quotes_the_measurement_of_its_rack() -> None:
    given = in_two_racks()
    hear(given.state, *waiting("gang", nodes=2, gpus=2))
    decisions(given.state, given.now_s)
    assert explain(given.state, JOB)["answer"].endswith(QUOTE)


def test_a_gang_that_is_about_to_be_placed_quotes_it_too() -> None:
    given = in_two_racks()
    hear(given.state, *waiting("gang", nodes=2, gpus=2))
    assert explain(given.state, JOB)["answer"].endswith(QUOTE)


def test_a_gang_that_waits_for_a_rack_names_the_measured_ones() -> None:
    given = in_two_racks()
    hear(given.state, *waiting("gang", nodes=4, gpus=2, rack="required"))
    decisions(given.state, given.now_s)
    answer = explain(given.state, JOB)["answer"]
    assert "one of those measured at 00:00 UTC: m1 with 3 nodes, m2 with 3 nodes" in answer


def test_a_job_on_one_node_or_in_two_racks_quotes_nothing() -> None:
    given = in_two_racks()
    hear(given.state, *waiting("one", nodes=1, gpus=1))
    decisions(given.state, given.now_s)
    assert "measured" not in explain(given.state, JobId("one"))["answer"]
    hear(given.state, *waiting("gang", nodes=5, gpus=1))
    decisions(given.state, given.now_s)
    assert "measured" not in explain(given.state, JOB)["answer"]


def test_a_declared_rack_needs_no_proof() -> None:
    given = in_two_racks()
    for node in given.state.cluster.nodes.values():
        node.rack = "declared"
    hear(given.state, *waiting("gang", nodes=2, gpus=2))
    decisions(given.state, given.now_s)
    assert "measured" not in explain(given.state, JOB)["answer"]


def test_a_single_rack_has_nothing_to_be_compared_with() -> None:
    given = FabricWorld(4)
    given.end()
    hear(given.state, *waiting("gang", nodes=2, gpus=2))
    decisions(given.state, given.now_s)
    assert "measured" not in explain(given.state, JOB)["answer"]


def test_a_rack_that_is_hardly_faster_is_no_argument() -> None:
    given = in_two_racks()
    for key, view in given.state.cluster.fabric.pairs.items():
        given.state.cluster.fabric.pairs[key] = type(view)(FAST, FAST)
    hear(given.state, *waiting("gang", nodes=2, gpus=2))
    decisions(given.state, given.now_s)
    assert "measured" not in explain(given.state, JOB)["answer"]
