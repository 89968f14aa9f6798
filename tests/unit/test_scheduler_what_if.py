"""`whatif`: where a job would start now, or what stands in its way; and that asking changes
nothing.
"""

from typing import Any

import pytest

from libs.common import arrays
from libs.common import facts as f
from libs.common.model import NodeId, TenantId
from services.scheduler.decide.decide import decide
from services.scheduler.questions.what_if import WhatIfAsk, what_if
from services.scheduler.state.state import State
from tests.given import given, member, placed, registered, spec, waiting


def asked(state: State, tenant: str = "default", **request: int) -> dict[str, Any]:
    return what_if(state, WhatIfAsk(spec(**request), TenantId(tenant)))


def test_a_job_that_fits_is_told_where_it_would_start_and_that_is_where_it_starts() -> None:
    history = [registered("a"), registered("b", gpus=2)]
    found = asked(given(*history), gpus=2)
    assert (found["would_start"], found["blockers"], found["remedy"]) == (True, [], None)
    assert found["answer"] == "it would start now, on b"
    (fact,) = decide(given(*history, waiting("j", gpus=2)), 0)
    assert isinstance(fact, f.JobPlaced)
    chosen = [
        {
            "rank": m.rank,
            "node_id": m.node_id,
            "gpus": [{"uuid": h.uuid, "share": h.share} for h in m.gpus],
        }
        for m in fact.members
    ]
    assert found["placement"] == chosen


def test_a_job_for_which_nothing_is_free_is_told_the_blockers() -> None:
    found = asked(
        given(registered("a"), waiting("i", gpus=4), placed("i", member("a", 0, 1, 2, 3))), gpus=1
    )
    assert (found["would_start"], found["placement"]) == (False, [])
    (blocker,) = found["blockers"]
    assert (blocker["what"], blocker["detail"]) == ("GPUs in use: needs 1, at most 0 free", "a")


def test_a_job_that_can_never_fit_is_told_the_cheapest_change() -> None:
    found = asked(given(registered("a")), gpus=5)
    assert (
        not found["would_start"]
        and "could never hold it" in str(found["answer"])
        and found["remedy"]
    )


def test_only_earlier_jobs_that_wait_for_devices_block_a_job() -> None:
    held = [registered("a"), waiting("i", gpus=2), placed("i", member("a", 0, 1))]
    assert not asked(given(*held, waiting("first", gpus=4)), gpus=1)["would_start"]
    assert asked(given(*held, waiting("never", gpus=64)), gpus=1)["would_start"]
    assert asked(given(*held, waiting("first", gpus=4)), gpus=1, priority=60)["would_start"]


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"max_gpu_share": 100}, "holds 0 of at most 1 GPUs"),
        ({"max_waiting": 1}, "may have 1 job waiting and has 1: wait"),
    ],
)
def test_a_tenant_s_limit_is_in_its_way(limits: dict[str, int], said: str) -> None:
    never = waiting("w", gpus=64, tenant="t")
    history = [f.TenantSet(tenant=TenantId("t"), **limits), registered("a"), never]
    found = asked(given(*history), "t", gpus=2)
    assert not found["would_start"] and said in str(found["answer"])
    assert asked(given(*history), "other", gpus=2)["would_start"]


def test_an_array_counts_for_all_its_elements() -> None:
    limit = f.TenantSet(tenant=TenantId("t"), max_waiting=10)
    for elements, is_admitted in (("1-10", True), ("1-11", False)):
        ask = WhatIfAsk(spec(array=arrays.parse(elements)), TenantId("t"))
        answer = str(what_if(given(limit, registered("a")), ask)["answer"])
        refusal = "may have 10 jobs waiting and has 0, and this array has 11 elements"
        assert (refusal in answer) != is_admitted


def test_a_reservation_for_a_user_is_for_the_user_who_asks() -> None:
    night = f.ReservationSet(
        reservation="night",
        nodes=(NodeId("a"),),
        start_ns=0,
        end_ns=1 << 60,
        users=("t/ada",),
        user="ops",
    )
    for user, starts in (("ada", True), ("bob", False)):
        ask = WhatIfAsk(spec(gpus=1, reservation="night"), TenantId("t"), user=user)
        assert what_if(given(registered("a"), night), ask)["would_start"] == starts


def test_whatif_backfills_a_job_that_delays_no_other() -> None:
    busy = [
        *waiting("i", gpus=2, time_limit_s=1_000),
        placed("i", member("a", 0, 1)),
        *waiting("big", gpus=4),
    ]
    assert not asked(given(registered("a"), busy))["would_start"]
    assert (
        asked(given(registered("a"), busy), time_limit_s=60)["answer"] == "it would start now, on a"
    )
    strict = f.QueueSet(queue="default", policy="priority", backfill=False)
    assert not asked(given(registered("a"), strict, busy), time_limit_s=60)["would_start"]
