"""Placement against brute force: what is chosen is real, disjoint and free, and something is chosen
whenever anything could be.
"""

from collections import Counter
from collections.abc import Sequence

from hypothesis import given as draw
from hypothesis import strategies as st

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import WHOLE_GPU, JobSpec, TenantId
from libs.common.state.cluster import node_gpus
from services.scheduler.decide.placing import catch_up, place
from services.scheduler.placement.choose import NO_PLACEMENT, choose
from services.scheduler.placement.sharing_domains import sharing_domain_of
from services.scheduler.state.state import State
from tests.given import given, member, placed, registered, spec, waiting

SIZES = st.lists(st.integers(0, 4), min_size=1, max_size=4)
HOLDS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from([20, 50, 70, 100])), max_size=8
)
SHARES = st.sampled_from([20, 50, 100])
WISHES = st.builds(
    lambda nodes, gpus, share: spec(nodes=nodes, gpus=gpus, gpu_share=share),
    st.integers(1, 3),
    st.integers(1, 4),
    SHARES,
)


def world(
    sizes: Sequence[int], holds: Sequence[tuple[int, int, int]], requests: Sequence[JobSpec] = ()
) -> State:
    """Nodes of these sizes, on which what fits of these holds is held, and jobs that wait."""
    history = [registered(f"n{i}", gpus=size) for i, size in enumerate(sizes)]
    for number, (node, gpu, share) in enumerate(holds):
        if node < len(sizes) and gpu < sizes[node]:
            job = f"h{number}"
            history += [
                *waiting(job, gpu_share=share),
                placed(job, member(f"n{node}", gpu, share=share)),
            ]  # type: ignore[list-item]
    for number, request in enumerate(requests):
        history += waiting(
            f"w{number}", nodes=request.nodes, gpus=request.gpus, gpu_share=request.gpu_share
        )  # type: ignore[arg-type]
    return given(*history)


def could_serve(state: State, request: JobSpec) -> int:
    """How many nodes have enough devices with the share free, counted one by one."""
    found = 0
    for node in state.cluster.nodes.values():
        free = [
            view
            for view in node_gpus(state.cluster, node)
            if WHOLE_GPU - view.held >= request.gpu_share
        ]
        found += len(free) >= request.gpus
    return found


@draw(SIZES, HOLDS, WISHES)
def test_a_choice_is_made_exactly_when_one_exists_and_takes_only_what_is_free(
    sizes: list[int], holds: list[tuple[int, int, int]], request: JobSpec
) -> None:
    state = world(sizes, holds)
    choice = choose(state.capacity, request, TenantId("default"))
    assert (choice is not NO_PLACEMENT) == (could_serve(state, request) >= request.nodes)
    assert len({node for node, _ in choice}) == len(choice)
    for node, taken in choice:
        assert len({hold.uuid for hold in taken}) == len(taken) == request.gpus
        for hold in taken:
            view = state.cluster.gpus[hold.uuid]
            assert view.node_id == node and view.held + hold.share <= WHOLE_GPU


@draw(SIZES, HOLDS, st.lists(WISHES, max_size=5), st.booleans())
def test_own_placements_leave_the_same_free_devices_as_the_ledger(
    sizes: list[int], holds: list[tuple[int, int, int]], requests: list[JobSpec], looks_ahead: bool
) -> None:
    state = world(sizes, holds, requests)
    while facts := place(state):
        state.apply_own(facts, 0)
        if looks_ahead:
            catch_up(state)
    read = State(state.cluster)
    assert noted(state) == noted(read)
    for request in (spec(gpus=1, gpu_share=20), spec(gpus=1), spec(gpus=2, gpu_share=50)):
        assert choose(state.capacity, request, TenantId("default")) == choose(
            read.capacity, request, TenantId("default")
        )


def noted(state: State) -> list[object]:
    return [
        (p.whole, p.parts, p.lefts, p.widest, p.cpus_free, p.memory_free)
        for p in state.capacity.places
        if p is not None
    ]


TENANTS = ("red", "blue", "green")
OWNED = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([20, 30, 50]), st.sampled_from(TENANTS)),
    max_size=8,
)


@draw(
    OWNED,
    st.sets(st.sampled_from(TENANTS)),
    st.sampled_from(TENANTS),
    st.integers(1, 4),
    st.sampled_from([20, 50]),
)
def test_a_device_is_shared_with_another_tenant_exactly_when_both_may(
    holds: list[tuple[int, int, str]], sharing: set[str], tenant: str, gpus: int, share: int
) -> None:
    """Against brute force: what is chosen is free or open to this tenant, and all of it that is
    there is found.
    """
    words = [f.TenantSet(tenant=TenantId(name), shares_devices=name in sharing) for name in TENANTS]
    history: list[AnyFact] = [registered("n", gpus=4), *words]
    owners: dict[str, set[str]] = {}
    held: Counter[str] = Counter()
    for number, (gpu, part, owner) in enumerate(holds):
        job, uuid = f"h{number}", f"n-gpu{gpu}"
        there = owners.setdefault(uuid, set())
        if held[uuid] + part <= WHOLE_GPU and all(
            other == owner or {other, owner} <= sharing for other in there
        ):
            there.add(owner)
            held[uuid] += part
            history += [
                *waiting(job, gpu_share=part, tenant=owner),
                placed(job, member("n", gpu, share=part)),
            ]
    state = given(history)

    def may(uuid: str) -> bool:
        open_to = all(
            other == tenant or {other, tenant} <= sharing for other in owners.get(uuid, ())
        )
        return open_to and WHOLE_GPU - held[uuid] >= share

    allowed = [uuid for uuid in state.cluster.gpus if may(uuid)]
    choice = choose(
        state.capacity,
        spec(gpus=gpus, gpu_share=share),
        sharing_domain_of(state.cluster, TenantId(tenant)),
    )
    assert (choice is not NO_PLACEMENT) == (len(allowed) >= gpus)
    assert all(hold.uuid in allowed for _, taken in choice for hold in taken)
