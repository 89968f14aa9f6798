"""Placement against brute force: what is chosen is real, disjoint and free, and something is chosen whenever anything could be."""

from collections.abc import Sequence

from hypothesis import given as draw
from hypothesis import strategies as st

from libs.common.cluster import node_gpus
from libs.common.model import WHOLE_GPU, JobSpec
from services.scheduler.placement.choose import NOTHING, choose
from services.scheduler.state import State
from tests.given import given, member, placed, registered, spec, waiting

SIZES = st.lists(st.integers(0, 4), min_size=1, max_size=4)
HOLDS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from([20, 50, 70, 100])), max_size=8)
SHARES = st.sampled_from([20, 50, 100])
WISHES = st.builds(lambda nodes, gpus, share: spec(nodes=nodes, gpus=gpus, gpu_share=share), st.integers(1, 3), st.integers(1, 4), SHARES)


def world(sizes: Sequence[int], holds: Sequence[tuple[int, int, int]]) -> State:
    """Nodes of these sizes, on which what fits of these holds is held."""
    history = [registered(f"n{i}", gpus=size) for i, size in enumerate(sizes)]
    for number, (node, gpu, share) in enumerate(holds):
        if node < len(sizes) and gpu < sizes[node]:
            job = f"h{number}"
            history += [*waiting(job, gpu_share=share), placed(job, member(f"n{node}", gpu, share=share))]  # type: ignore[list-item]
    return given(*history)


def could_serve(state: State, wish: JobSpec) -> int:
    """How many nodes have enough devices with the share free, counted one by one."""
    found = 0
    for node in state.cluster.nodes.values():
        free = [view for view in node_gpus(state.cluster, node) if WHOLE_GPU - view.held >= wish.gpu_share]
        found += len(free) >= wish.gpus
    return found


@draw(SIZES, HOLDS, WISHES)
def test_a_choice_is_made_exactly_when_one_exists_and_takes_only_what_is_free(
    sizes: list[int], holds: list[tuple[int, int, int]], wish: JobSpec
) -> None:
    state = world(sizes, holds)
    choice = choose(state.capacity, wish)
    assert (choice is not NOTHING) == (could_serve(state, wish) >= wish.nodes)
    assert len({node for node, _ in choice}) == len(choice)
    for node, taken in choice:
        assert len({hold.uuid for hold in taken}) == len(taken) == wish.gpus
        for hold in taken:
            view = state.cluster.gpus[hold.uuid]
            assert view.node_id == node and view.held + hold.share <= WHOLE_GPU
