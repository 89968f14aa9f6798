"""Requests about allocations: each is accepted, or refused with the field or the reason."""

import pytest

from libs.common import facts as f
from libs.common.errors import Refused
from libs.common.model import KEEPER, Allocation, GpuHold, GpuId, JobId, NodeId, TenantId
from libs.common.state.cluster import Cancel, Cluster, Job, MemberView
from libs.common.state.ordering import SECOND_NS
from libs.common.state.reservation import Reservation
from libs.common.state.tenant import Tenant
from services.api_gateway.intents import allocation_intents as intents
from services.api_gateway.intents.job_intents import YEAR_S, submission
from services.api_gateway.problems import Problem
from tests.given import spec

J = JobId("j")
BEGAN_NS = 1_000 * SECOND_NS


def held(state: str = "running", **fields: object) -> Job:
    job = Job(
        job_id=J,
        spec=spec(allocation=Allocation(60), **fields),
        tenant=TenantId("t"),
        user="ada",
        seq=1,
        state=state,
        attempt=2,
    )
    job.placed_ns, job.expires_ns = BEGAN_NS, BEGAN_NS + 60 * SECOND_NS
    return job


def test_an_allocation_is_a_job_that_only_waits_and_never_moves() -> None:
    fact = intents.allocation(
        {
            "gpus": 2,
            "expires": "2h",
            "warn": "10m",
            "labels": {"team": "a"},
            "user": "ada",
            "model": "H100",
        },
        J,
    )
    assert (fact.job_id, fact.user, fact.spec.allocation) == (J, "ada", Allocation(7_200, 600))
    assert (fact.spec.command, fact.spec.requeue, fact.spec.gpus, fact.spec.model) == (
        KEEPER,
        False,
        2,
        ("H100",),
    )
    assert fact.spec.estimate_s == 7_200 and fact.spec.kind == "allocation"


def test_without_a_word_it_is_for_an_hour() -> None:
    assert intents.allocation({}, J).spec.allocation == Allocation(3_600, 300)


OF_A_COMMAND = (
    "command",
    "upload",
    "time_limit",
    "retries",
    "hold",
    "after",
    "stdin",
    "serve",
    "allocation",
    "array",
    "preemptible",
    "deadline",
)


@pytest.mark.parametrize("field", OF_A_COMMAND)
def test_command_options_are_refused_for_an_allocation(field: str) -> None:
    with pytest.raises(Refused, match=field):
        intents.allocation({field: "x"}, J)


@pytest.mark.parametrize(
    ("field", "value"),
    [("expires", 0), ("expires", "soon"), ("expires", YEAR_S + 1), ("warn", -1), ("gpus", 65)],
)
def test_impossible_value_is_refused_with_its_name(field: str, value: object) -> None:
    with pytest.raises(Refused, match=field):
        intents.allocation({field: value}, J)


def test_nobody_submits_an_allocation_as_a_job() -> None:
    with pytest.raises(Refused, match="allocation"):
        submission({"command": ["x"], "allocation": {"expires_s": 9}}, J)


def test_an_extension_is_counted_from_the_end_that_is_known() -> None:
    wanted = f.AllocationExtended(
        job_id=J, attempt=2, expires_ns=BEGAN_NS + 3_660 * SECOND_NS, user="bob"
    )
    assert intents.extension({"by": "1h", "user": "bob"}, held(), Cluster(), ()) == wanted


@pytest.mark.parametrize(
    "body", [None, {}, {"by": 0}, {"by": "x"}, {"until": "1h"}, {"by": YEAR_S}]
)
def test_an_extension_that_means_nothing_is_refused(body: object) -> None:
    with pytest.raises(Refused):
        intents.extension(body, held(), Cluster(), ())


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("queued", "when it is placed"),
        ("pending", "when it is placed"),
        ("releasing", "was released or has ended"),
    ],
)
def test_only_a_held_allocation_is_extended(state: str, said: str) -> None:
    with pytest.raises(Problem, match=said):
        intents.extension({"by": 1}, held(state), Cluster(), ())


def test_ending_allocation_or_one_with_a_command_is_not_extended() -> None:
    stopped, cancelled = held(), held()
    stopped.stop_reason, cancelled.cancel = "expired", Cancel(1, 15)
    for job in (stopped, cancelled):
        with pytest.raises(Problem, match="was released or has ended"):
            intents.extension({"by": 1}, job, Cluster(), ())
    with pytest.raises(Problem, match="not an allocation"):
        intents.extension(
            {"by": 1},
            Job(job_id=J, spec=spec(), tenant=TenantId("t"), user="ada", seq=1, state="running"),
            Cluster(),
            (),
        )


def test_a_tenant_without_a_budget_left_keeps_what_it_holds_and_for_no_longer() -> None:
    limited = Tenant(TenantId("t"), gpu_hours=2)
    cluster = Cluster(tenants={TenantId("t"): limited})
    assert intents.extension({"by": 1}, held(), cluster, cluster.jobs.values())
    limited.spent_gpu_hours = 2
    with pytest.raises(Problem, match="budget"):
        intents.extension({"by": 1}, held(), cluster, cluster.jobs.values())


def test_an_extension_beyond_what_the_budget_has_left_is_refused() -> None:
    """It holds one device, and is to hold it for two hours in all; another tenant's counts for that
    one.
    """
    job, other = held(), held()
    member = MemberView(
        node_id=NodeId("a"), incarnation=1, rank=0, gpus=(GpuHold(GpuId("g"), 100),), accounted=1
    )
    job.members, other.members, other.tenant = (
        {NodeId("a"): member},
        {NodeId("a"): member},
        TenantId("u"),
    )
    left_s = 7_200 - (job.expires_ns - job.placed_ns) // SECOND_NS
    cluster = Cluster(
        jobs={J: job, JobId("k"): other},
        tenants={TenantId("t"): Tenant(TenantId("t"), gpu_hours=2)},
    )
    assert intents.extension({"by": left_s}, job, cluster, cluster.jobs.values())
    with pytest.raises(
        Problem, match="GPU hours left of its budget of 2, and this extension needs"
    ):
        intents.extension({"by": left_s + 1}, job, cluster, cluster.jobs.values())


@pytest.mark.parametrize(
    ("start_s", "end_s", "node", "tenants", "refused"),
    [
        (100, 200, "a", (), True),
        (129, 130, "a", ("u",), True),
        (130, 200, "a", ("u",), False),
        (0, 61, "a", (), True),
        (0, 60, "a", (), False),
        (100, 200, "b", (), False),
        (100, 200, "a", ("t",), False),
    ],
)
def test_no_extension_reaches_into_a_reservation_of_others(
    start_s: int, end_s: int, node: str, tenants: tuple[str, ...], refused: bool
) -> None:
    """It ends 60 s after its placement, plus its grace of 10 s, and is to last a minute longer."""
    job = held(reservation="course", grace_s=10)
    member = MemberView(node_id=NodeId("a"), incarnation=1, rank=0, gpus=(), accounted=1)
    job.members = {NodeId("a"): member}
    kept = Reservation(
        name="course",
        nodes=(NodeId(node),),
        start_ns=BEGAN_NS + start_s * SECOND_NS,
        end_ns=BEGAN_NS + end_s * SECOND_NS,
        tenants=tuple(TenantId(name) for name in tenants),
    )
    cluster = Cluster(reservations={"course": kept})
    if not refused:
        assert intents.extension({"by": "1m"}, job, cluster, cluster.jobs.values())
        return
    with pytest.raises(Problem, match="course of its nodes begins at 1970-01-01T00:1"):
        intents.extension({"by": "1m"}, job, cluster, cluster.jobs.values())
