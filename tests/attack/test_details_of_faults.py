"""Details of GPU faults, which can name processes, show nothing of other tenants' jobs."""

import pytest

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import AttemptRef, GpuId, NodeId, job_of
from services.api_gateway.access import roles
from services.api_gateway.access.roles import Principal
from services.api_gateway.views.nodes import gpu_seen
from services.api_gateway.views.others import seen_by
from tests.given import given, member, placed, registered, started, waiting

DETAIL = "merger-train"
FAULTED = f.GpuFaulted(
    node_id=NodeId("a"),
    uuid=GpuId("a-gpu0"),
    health="degraded",
    reason="quarantined",
    detail=f"open in process 4711 {DETAIL}",
    verdict="reset",
)


@pytest.mark.parametrize(
    ("holders", "is_shown"),
    [((), False), (("mine",), True), (("theirs",), False), (("mine", "theirs"), False)],
)
def test_the_detail_of_a_fault_is_shown_to_the_tenant_whose_jobs_have_the_device(
    holders: tuple[str, ...], is_shown: bool
) -> None:
    """The detail can name the process of the job that used the device."""
    share = 100 // max(1, len(holders))
    told: list[AnyFact] = []
    for tenant in holders:
        name = "j" if tenant == "mine" else "jmerger1"
        told += waiting(name, tenant=tenant, gpu_share=share)
        told += [placed(name, member("a", 0, share=share)), started(name, "a")]
    cluster = given(registered("a"), told, FAULTED).cluster
    view = cluster.gpus[FAULTED.uuid]
    error = f.GpuErrorSeen(
        node_id=FAULTED.node_id,
        uuid=FAULTED.uuid,
        error="xid 31",
        verdict="job",
        source="kernel",
        jobs=tuple(AttemptRef(job_of(key), 1) for key in view.holds),
        detail=f"pid=4711, name={DETAIL}",
    )
    ada = Principal("k", "mine", "ada", roles.MEMBER)
    shown = gpu_seen(ada, cluster, view)
    facts = [seen_by(ada, cluster, each) for each in (FAULTED, error)]
    assert [DETAIL in repr(each) for each in (shown, *facts)] == [is_shown] * 3
    assert (shown.reason, shown.verdict) == ("quarantined", "reset")
    olga = Principal("k", "x", "olga", roles.OPERATOR)
    assert gpu_seen(olga, cluster, view).detail == FAULTED.detail
    assert seen_by(olga, cluster, FAULTED) == FAULTED
