"""Memory pools in the API: the ledger's sizes, the node's grants, and what a tenant sees."""

from libs.common.messages.memory_messages import DeviceMemory, MemoryReport, UsedMemory
from libs.common.model import JobId
from services.api_gateway.access.roles import ADMIN, MEMBER, Principal
from services.api_gateway.views.memory import (
    NodeMemoryShown,
    OtherPools,
    node_memory,
)
from tests.given import given, member, placed, registered, waiting

GIB = 1 << 30
ANN = Principal("k", "default", "ann", MEMBER)
ROOT = Principal("k", "default", "root", ADMIN)
HISTORY = [
    registered("a", 2, memory_bytes=64 * GIB),
    *waiting("mine", pool_bytes=4 * GIB, host_pool_bytes=GIB, name="train"),
    *waiting("theirs", pool_bytes=8 * GIB, tenant="physics"),
    *waiting("plain"),
    placed("mine", member("a", 0, share=50)),
    placed("theirs", member("a", 1)),
]
REPORT = MemoryReport(
    (DeviceMemory("a-gpu0", 80 * GIB, 3 * GIB), DeviceMemory("a-gpu1", 80 * GIB, 0, "it hangs")),
    (
        UsedMemory(JobId("mine"), 1, "a-gpu0", "weights", 2 * GIB),
        UsedMemory(JobId("mine"), 1, "a-gpu0", "cache", GIB),
        UsedMemory(JobId("theirs"), 1, "a-gpu1", "secret purpose", 5 * GIB),
        UsedMemory(JobId("forged"), 1, "a-gpu0", "a lie of the node", 70 * GIB),
        UsedMemory(JobId("mine"), 7, "a-gpu0", "another attempt", 70 * GIB),
    ),
)


def shown(who: Principal, report: MemoryReport | None = REPORT, only: str = "") -> NodeMemoryShown:
    cluster = given(HISTORY).cluster
    node = next(iter(cluster.nodes.values()))
    return node_memory(who, cluster, node, report=report, only=JobId(only))


def test_a_tenant_sees_its_own_pools_and_the_sum_of_the_others() -> None:
    found = shown(ANN)
    assert [(pool.device, pool.pool_bytes, pool.granted_bytes) for pool in found.pools] == [
        ("a-gpu0", 4 * GIB, 3 * GIB),
        ("host", GIB, 0),
    ]
    assert found.pools[0].purposes == {"weights": 2 * GIB, "cache": GIB}
    assert found.other_tenants == OtherPools(1, 8 * GIB, 5 * GIB)
    assert "secret" not in str(found) and "theirs" not in str(found)


def test_an_administrator_sees_all_pools() -> None:
    found = shown(ROOT)
    assert {pool.job_id for pool in found.pools} == {"mine", "theirs"}
    assert found.other_tenants == OtherPools(0, 0, 0)


def test_devices_have_the_sums_of_all_tenants_and_only_of_jobs_that_the_ledger_has_there() -> None:
    devices = {each.device: each for each in shown(ANN).devices}
    assert (devices["a-gpu0"].pool_bytes, devices["a-gpu0"].granted_bytes) == (4 * GIB, 3 * GIB)
    assert (devices["a-gpu1"].granted_bytes, devices["a-gpu1"].unusable) == (5 * GIB, "it hangs")
    assert (devices["host"].capacity_bytes, devices["host"].pool_bytes) == (64 * GIB, GIB)


def test_a_node_that_does_not_answer_has_sizes_without_grants() -> None:
    found = shown(ANN, None)
    assert {pool.granted_bytes for pool in found.pools} == {None}
    assert found.other_tenants == OtherPools(1, 8 * GIB, None)
    assert {each.granted_bytes for each in found.devices} == {None}


def test_one_job_alone_can_be_asked_for() -> None:
    assert {pool.job_id for pool in shown(ROOT, only="theirs").pools} == {"theirs"}
