"""The models as requests see them: what the fold says is served, where, and why not."""

from collections.abc import Sequence

import pytest

from libs.common import facts as f
from libs.common.adapters import AdapterRules
from libs.common.facts import AnyFact
from libs.common.model import JobId, JobSpec, NodeId, Serve
from libs.common.model_spec import ModelSpec, Replica
from libs.common.state import model_view
from libs.common.state.cluster import Cluster, Endpoint
from services.api_gateway.access.roles import Principal
from services.api_gateway.openai.catalogue import Deployed, Served
from tests.given import given, member, placed, registered, started, tell

SPEC = JobSpec(command=("serve",), serve=Serve("chat", 1))
DEPLOYED = f.ModelDeployed(name="chat", spec=ModelSpec(command=("serve", "{port}"), replicas=2))
ADDED = f.ReplicasScaled(
    model="chat", generation=1, add=tuple(Replica(JobId(f"chat-{n}"), SPEC) for n in (1, 2))
)
ADA = Principal("k", "default", "ada", "member")
EVE = Principal("k", "other", "eve", "member")
HISTORY = (registered("n1"), DEPLOYED, ADDED)


def catalogue(*history: AnyFact | Sequence[AnyFact]) -> Deployed:
    cluster: Cluster = given(*HISTORY, *history).cluster
    return Deployed(lambda: cluster, lambda: 0)


def running(ordinal: int) -> list[AnyFact]:
    job = f"chat-{ordinal}"
    return [placed(job, member("n1", ordinal), port=8_000 + ordinal), started(job, "n1")]


def ready(ordinal: int) -> f.ReplicaReady:
    return f.ReplicaReady(job_id=JobId(f"chat-{ordinal}"), attempt=1, node_id=NodeId("n1"))


def test_a_deployed_model_is_served_where_its_ready_replicas_are() -> None:
    found = catalogue(running(1), running(2), ready(2))
    chat = Served("chat", "default", 0)
    assert found.get("chat") == chat and found.find(ADA, "chat") == chat
    assert list(found.names(ADA)) == [("chat", chat)] and list(found.names(EVE)) == []
    assert found.find(EVE, "chat") is None
    assert found.ready("chat") == [Endpoint(JobId("chat-2"), "127.0.0.1", 8_002)]


def test_a_model_that_is_not_deployed_is_not_served() -> None:
    found = catalogue(f.ModelUndeployed(name="chat"))
    assert found.get("chat") is None and found.get("other") is None
    assert list(found.names(ADA)) == [] and found.find(ADA, "chat") is None
    assert found.ready("other") == [] and found.why_not("chat") == "it was undeployed"


def test_why_none_is_ready_counts_what_starts_and_what_waits() -> None:
    assert catalogue().why_not("chat") == "2 wait for devices"
    assert catalogue(running(1)).why_not("chat") == "1 of 2 are starting, 1 waits for devices"
    assert catalogue(running(1), running(2)).why_not("chat") == "2 of 2 are starting"
    assert catalogue(f.ModelScaled(name="chat", replicas=0)).why_not("chat") == "it is scaled to 0"


def ended(reason: str, until_ns: int) -> list[AnyFact]:
    """Replica 1 ran, ended with this reason, and waits before its next attempt."""
    job, node = JobId("chat-1"), NodeId("n1")
    end = f.JobFinished(job_id=job, attempt=1, node_id=node, exit_code=None, reason=reason)
    again = f.JobRequeued(
        job_id=job, attempt=1, reason=reason, counted=False, not_before_ns=until_ns
    )
    return [*running(1), end, f.JobReleased(job_id=job, attempt=1, node_id=node), again]


def test_replicas_that_wait_before_their_next_attempt_do_not_wait_for_devices() -> None:
    waits = catalogue(ended("gpu_fault", 5))
    assert waits.why_not("chat") == "1 waits for devices, 1 waits after gpu_fault"
    assert catalogue(running(2), ended("gpu_fault", 5)).why_not("chat") == (
        "1 of 2 are starting, 1 waits after gpu_fault"
    )
    assert catalogue(ended("refused", 5)).why_not("chat") == (
        "1 waits for devices, 1 waits after a refusal"
    )
    later = Deployed(waits.cluster, lambda: 6)
    assert later.why_not("chat") == "2 wait for devices"


def unready(ordinal: int) -> f.ReplicaUnready:
    return f.ReplicaUnready(
        job_id=JobId(f"chat-{ordinal}"),
        attempt=1,
        node_id=NodeId("n1"),
        reason="no answer within 2 s",
    )


@pytest.mark.attack
def test_when_none_is_ready_requests_go_to_those_that_were() -> None:
    found = catalogue(running(1), running(2))
    for fact in (ready(1), ready(2), unready(2)):
        tell(found.cluster(), fact, 1.0)
    assert [endpoint.job_id for endpoint in found.ready("chat")] == ["chat-1"]
    tell(found.cluster(), unready(1), 2.0)
    assert [endpoint.job_id for endpoint in found.ready("chat")] == ["chat-1", "chat-2"]
    model = found.cluster().models["chat"]
    assert found.why_not("chat") == "2 of 2 replicas run but do not answer their health probe"
    assert model_view.state_of(found.cluster(), model) == "unready"
    assert {
        model_view.replica_state(job) for job in model_view.replicas(found.cluster(), model)
    } == {"unready"}
    assert model_view.routable(found.cluster(), "other") == []


def test_a_replica_that_never_was_ready_gets_no_request() -> None:
    found = catalogue(running(1), running(2))
    assert found.ready("chat") == []


def test_a_crash_loop_is_named_without_what_only_its_owner_may_know() -> None:
    found = catalogue()
    model = found.cluster().models["chat"]
    model.crashes, model.last_crash = 3, "failed, exit code 1, chat-2"
    assert found.why_not("chat").endswith("; they crash repeatedly: `muster models chat` says how")


def test_names_follow_the_facts_and_a_replica_keeps_the_name_that_it_was_started_with() -> None:
    found = catalogue(running(1), ready(1))
    endpoint = found.ready("chat")[0]
    assert found.expects("chat", endpoint) == "chat"
    assert found.expects("chat", Endpoint(JobId("gone-1"), "127.0.0.1", 1)) == "chat"
    assert found.find(ADA, "gpt-4o") is None
    tell(found.cluster(), f.ModelAliasSet(name="chat", alias="gpt-4o"), 1.0)
    assert found.find(ADA, "gpt-4o") == found.get("chat")
    spec = ModelSpec(command=("serve",), replicas=2, served_name="Qwen/Qwen2.5-7B")
    tell(found.cluster(), f.ModelDeployed(name="chat", spec=spec), 2.0)
    assert found.find(ADA, "Qwen/Qwen2.5-7B") == found.get("chat")
    assert found.expects("chat", endpoint) == "chat"
    new = model_view.replica_spec(spec, "chat", 2)
    added = f.ReplicasScaled(model="chat", generation=2, add=(Replica(JobId("chat-3"), new),))
    tell(found.cluster(), added, 3.0)
    assert found.expects("chat", Endpoint(JobId("chat-3"), "h", 1)) == "Qwen/Qwen2.5-7B"


def test_an_adapter_is_served_by_its_model_under_its_short_name() -> None:
    rules = AdapterRules(root="/lora")
    spec = ModelSpec(command=("serve",), adapters=rules)
    found = catalogue(
        f.ModelDeployed(name="chat", spec=spec),
        f.ModelAdapterSet(name="chat", adapter="sql", path="/lora/sql"),
        f.ModelDeployed(name="two", spec=spec),
        f.ModelAdapterSet(name="two", adapter="sql", path="/lora/2"),
    )
    for name in ("sql", "chat:sql"):
        assert found.find(ADA, name) == Served("chat", "default", 0, "sql")
    assert [name for name, _ in found.names(ADA)] == ["chat", "two", "sql", "two:sql"]
    adapter = found.adapter("chat", "sql")
    assert adapter is not None
    assert (adapter.path, adapter.rules, adapter.is_replaced) == ("/lora/sql", rules, False)
    assert found.adapter_versions("chat") == {"sql": adapter.seq}
    assert found.adapter("chat", "art") is None and found.adapter("no", "sql") is None
    assert found.adapter_rules("no") is None and found.adapter_versions("no") == {}
    found.cluster().models["chat"].spec = ModelSpec(command=("serve",))
    assert found.adapter("chat", "sql") is None
