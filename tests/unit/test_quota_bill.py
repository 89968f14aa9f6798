"""The lines of a replica's charge: they never exceed it, and what is left is idle time."""

from libs.common import facts as f
from libs.common.facts import AnyFact, ChargeLine, ModelUse
from libs.common.folds.usage_fold import KEYS_MAX, OTHERS
from libs.common.model import JobId, JobSpec, NodeId, Serve, TenantId
from libs.common.model_spec import ModelSpec, Replica
from libs.common.state.cluster import Charge, Job
from services.quota.bill import lines_of
from services.quota.decide import decide
from services.quota.state import State
from tests.given import given, member, placed, registered, started

OWNER = TenantId("default")
REPLICA = JobId("m-1")
SPEC = JobSpec(command=("serve",), serve=Serve("m", 1))
HISTORY: tuple[AnyFact | list[AnyFact], ...] = (
    registered("n1"),
    f.ModelDeployed(name="m", spec=ModelSpec(command=("serve",)), user="ada"),
    f.ReplicasScaled(model="m", generation=1, add=(Replica(REPLICA, SPEC),), user="ada"),
    placed("m-1", member("n1", 0), port=8_000),
    started("m-1", "n1"),
)


def used(tenant: str, key: str, share_ms: int, attempt: int = 1, job: str = "m-1") -> f.ModelUsed:
    use = ModelUse(
        tenant=TenantId(tenant),
        user="u",
        key_id=key,
        owner=OWNER,
        model="m",
        job_id=JobId(job),
        attempt=attempt,
        share_ms=share_ms,
    )
    return f.ModelUsed(uses=(use,))


def ended() -> list[AnyFact]:
    node = NodeId("n1")
    over = f.JobFinished(job_id=REPLICA, attempt=1, node_id=node, exit_code=0, run_ms=1_000)
    released = f.JobReleased(job_id=REPLICA, attempt=1, node_id=node)
    return [over, released, f.JobClosed(job_id=REPLICA, attempt=1, outcome="completed")]


def charge(share_ms: int) -> Charge:
    return Charge(job_id=REPLICA, attempt=1, tenant=OWNER, share_ms=share_ms)


def replica(*facts: AnyFact) -> Job:
    return given(*HISTORY, *facts).cluster.jobs[REPLICA]


def test_each_key_has_a_line_and_the_largest_comes_first() -> None:
    job = replica(used("a", "k1", 10), used("b", "k2", 30), used("a", "k1", 5))
    assert lines_of(job, charge(100)) == (
        ChargeLine(TenantId("b"), "u", "k2", 30),
        ChargeLine(TenantId("a"), "u", "k1", 15),
    )


def test_parts_that_exceed_the_charge_are_scaled_down_to_it() -> None:
    """Two gateways that each saw only their own requests counted the same time twice."""
    lines = lines_of(replica(used("a", "k1", 100), used("b", "k2", 200)), charge(100))
    assert [line.share_ms for line in lines] == [66, 33]


def test_a_job_without_requests_and_a_job_that_is_gone_have_no_lines() -> None:
    assert lines_of(replica(), charge(100)) == () == lines_of(None, charge(100))


def test_quota_charges_a_replica_with_its_lines_and_its_user() -> None:
    state = State(given(*HISTORY, used("b", "k2", 30), *ended()).cluster)
    (fact,) = decide(state, 0)
    assert isinstance(fact, f.UsageCharged) and fact.share_ms == 100_000 and fact.user == "ada"
    assert fact.lines == (ChargeLine(TenantId("b"), "u", "k2", 30),)


def test_what_was_used_is_forgotten_with_the_charge_and_late_reports_are_too() -> None:
    charged = f.UsageCharged(job_id=REPLICA, attempt=1, tenant=OWNER, share_ms=100)
    before = replica(used("a", "k", 1), *ended(), charged)
    after = replica(*ended(), charged, used("a", "k", 1))
    assert before.used == after.used == {}


def test_reports_about_unknown_jobs_and_without_time_change_nothing() -> None:
    assert replica(used("a", "k", 0), used("a", "k", 5, job="no-1")).used == {}


def test_the_number_of_keys_is_bounded_and_the_rest_counts_together() -> None:
    facts = [used("a", f"k{number}", 1) for number in range(KEYS_MAX + 3)]
    found = replica(*facts, used("a", "k0", 1)).used[1]
    assert len(found) == KEYS_MAX + 1 and found[OTHERS] == 3 and found["a u k0"] == 2
    assert ChargeLine(TenantId(""), "", "", 3) in lines_of(replica(*facts), charge(9_999))
