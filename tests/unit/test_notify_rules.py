"""Which destination gets which fact."""

from libs.common import facts as f
from libs.common.folds.notification_fold import DESTINATIONS_MAX, OF_TENANT_MAX
from libs.common.model import JobId, JobSpec, NodeId, TenantId
from libs.common.model_spec import ModelSpec, Replica
from libs.common.state.former_models import FormerModel
from libs.common.state.notifications import Destination
from services.api_gateway.notify.rules import (
    About,
    Origin,
    about,
    choosable,
    forgotten,
    origins,
    shown_to,
    wants,
)
from tests.history import History

RED, BLUE = TenantId("red"), TenantId("blue")
N1 = NodeId("n1")


def destination(**changed: object) -> Destination:
    fields: dict[str, object] = {
        "tenant": RED,
        "name": "d",
        "form": "webhook",
        "shown": "https://h.example",
        "kinds": ("job.", "node."),
        "user": "ada",
        "own": False,
        "failures": False,
        "models": (),
        "nodes": (),
        "tenants": (),
        "version": 1,
        "slot": 0,
        "created_seq": 1,
        "set_ns": 1,
        **changed,
    }
    return Destination(**fields)  # type: ignore[arg-type]


CLOSED = f.JobClosed(job_id=JobId("j1"), attempt=1, outcome="completed")
FAILED = f.JobClosed(job_id=JobId("j1"), attempt=1, outcome="failed")
LOST = f.NodeLost(node_id=N1, incarnation=1)
QUEUED = f.JobQueued(job_id=JobId("gone"))
SEQ = 9
ADAS = About(tenant="red", user="ada", job_id="j1", model="chat", nodes=("n1",))
OTHERS = About(tenant="blue", user="ada", job_id="j1")


def test_a_destination_gets_facts_of_its_own_tenant_only() -> None:
    assert wants(destination(), CLOSED, ADAS)
    assert not wants(destination(), CLOSED, OTHERS)
    assert not wants(destination(), CLOSED, About())


def test_an_operators_destination_gets_facts_of_the_tenants_that_it_names() -> None:
    assert wants(destination(tenants=("blue",)), CLOSED, OTHERS)
    assert not wants(destination(tenants=("blue",)), CLOSED, ADAS)
    assert wants(destination(tenants=("*",)), CLOSED, ADAS)
    assert wants(destination(tenants=("*",)), LOST, About(nodes=("n1",)))


def test_a_destination_reads_no_names_of_other_tenants_jobs() -> None:
    history = History()
    spec = JobSpec(command=("true",))
    for job, tenant in (("j1", RED), ("j2", RED), ("secret", BLUE)):
        history.say(f.JobSubmitted(job_id=JobId(job), spec=spec, tenant=tenant, user="ada"))

    def read(by: str, **changed: object) -> str:
        fact = f.JobPreempted(job_id=JobId("j1"), attempt=1, by=JobId(by))
        seen = shown_to(destination(**changed), history.cluster, fact)
        assert isinstance(seen, f.JobPreempted)
        return seen.by

    assert read("secret") == read("forgotten") == "a job of another tenant"
    assert read("j2") == "j2"
    assert read("secret", tenants=("red", "blue")) == "secret"


def test_facts_about_machines_go_to_everyone_who_asks_for_them() -> None:
    assert wants(destination(), LOST, About(nodes=("n1",)))
    assert not wants(destination(kinds=("job.",)), LOST, About(nodes=("n1",)))


def test_filters_choose_by_user_outcome_model_and_node() -> None:
    assert wants(destination(own=True), CLOSED, ADAS)
    assert not wants(destination(own=True, user="bob"), CLOSED, ADAS)
    assert wants(destination(failures=True), FAILED, ADAS)
    assert not wants(destination(failures=True), CLOSED, ADAS)
    assert wants(destination(models=("chat",)), CLOSED, ADAS)
    assert not wants(destination(models=("other",)), CLOSED, ADAS)
    assert wants(destination(nodes=("n1", "n2")), CLOSED, ADAS)
    assert not wants(destination(nodes=("n2",)), CLOSED, ADAS)


def test_facts_about_keys_and_requests_go_nowhere() -> None:
    everything = destination(kinds=("",), tenants=("*",))
    revoked = f.KeyRevoked(key_id="k1")
    assert not wants(everything, revoked, About())
    assert not any(kind.startswith(("key.", "access.")) for kind in choosable())
    assert "job.closed" in choosable()


def test_a_fact_is_about_its_job_with_user_name_and_nodes() -> None:
    history = History()
    spec = JobSpec(command=("true",), name="train")
    history.say(f.JobSubmitted(job_id=JobId("j1"), spec=spec, tenant=RED, user="ada"))
    found = about(history.cluster, CLOSED, SEQ)
    assert (found.tenant, found.user, found.job_name) == ("red", "ada", "train")
    assert about(history.cluster, LOST, SEQ) == About(nodes=("n1",))
    assert about(history.cluster, QUEUED, SEQ) == About(job_id="gone")
    named = f.BudgetExhausted(tenant=RED, gpu_hours=1, used_share_ms=1)
    assert about(history.cluster, named, SEQ).tenant == "red"


def test_a_job_that_the_state_has_forgotten_has_the_origin_of_its_first_fact() -> None:
    history = History()
    spec = JobSpec(command=("true",), name="train")
    submitted = f.JobSubmitted(job_id=JobId("j1"), spec=spec, tenant=RED, user="ada")
    added = (Replica(JobId("chat-3"), spec),)
    scaled = f.ReplicasScaled(model="chat", generation=1, add=added, tenant=RED, user="bob")
    found = origins((submitted, scaled, LOST))
    assert found == {
        "j1": Origin("red", "ada", "train"),
        "chat-3": Origin("red", "bob", "train", "chat"),
    }
    assert about(history.cluster, CLOSED, SEQ, found["j1"]) == About(
        tenant="red", user="ada", job_id="j1", job_name="train"
    )
    gone = f.JobClosed(job_id=JobId("chat-3"), attempt=1, outcome="failed")
    assert about(history.cluster, gone, SEQ, found["chat-3"]).model == "chat"


def test_a_fact_about_a_model_names_it() -> None:
    cluster = History().cluster
    undeployed = f.ModelUndeployed(name="chat", tenant=RED)
    scaled = f.ReplicasScaled(model="chat", generation=1, tenant=RED)
    for fact in (undeployed, scaled):
        assert about(cluster, fact, SEQ) == About(tenant="red", model="chat")


def test_a_fact_from_before_a_take_over_of_a_name_is_not_about_the_new_owner() -> None:
    history = History()

    def deployed(tenant: TenantId) -> int:
        spec = ModelSpec(command=("x",), replicas=0)
        history.say(f.ModelDeployed(name="chat", spec=spec, tenant=tenant, user="ada"))
        return history.cluster.seq

    before = deployed(BLUE)
    history.say(f.ModelUndeployed(name="chat", tenant=BLUE))
    after = deployed(RED)
    scaled = f.ModelAutoscaled(name="chat", generation=1, replicas=3)
    late = f.KeptEvicted(model="chat", tier="x", node_id=N1, request=before)
    kept = f.KeptEvicted(model="chat", tier="x", node_id=N1, request=after)
    theirs = ((scaled, before), (scaled, after - 1), (late, after + 1))
    tenants = [about(history.cluster, fact, seq).tenant for fact, seq in theirs]
    assert tenants == ["", "", ""]
    own = [about(history.cluster, fact, after + 1) for fact in (scaled, kept)]
    assert [(each.tenant, each.user) for each in own] == [("red", "ada"), ("red", "ada")]
    assert not wants(destination(kinds=("model.",)), scaled, About(model="chat"))


def test_a_fact_about_a_model_that_has_left_the_state_has_its_last_owner() -> None:
    cluster = History().cluster
    cluster.former_models["chat"] = FormerModel(RED, owner_seq=3, generation=1, next_ordinal=2)
    dropped = f.ModelAutoscaled(name="chat", generation=1, replicas=0)
    assert about(cluster, dropped, 3) == About(tenant="red", model="chat")
    assert about(cluster, dropped, 2) == About(model="chat")
    disabled = f.PluginDisabled(extends="x", name="chat", version="1", reason="slow")
    assert about(cluster, disabled, 3) == About()


def test_a_job_is_forgotten_if_neither_state_nor_fact_tells_its_tenant() -> None:
    history = History()
    assert forgotten(history.cluster, CLOSED) == "j1"
    assert forgotten(history.cluster, LOST) == ""
    charged = f.UsageCharged(job_id=JobId("j1"), attempt=1, tenant=RED, share_ms=1)
    assert forgotten(history.cluster, charged) == ""
    spec = JobSpec(command=("true",))
    history.say(f.JobSubmitted(job_id=JobId("j1"), spec=spec, tenant=RED, user="ada"))
    assert forgotten(history.cluster, CLOSED) == ""


def setting(name: str, tenant: TenantId = RED) -> f.NotificationSet:
    return f.NotificationSet(
        tenant=tenant, name=name, form="mail", shown="a@b.c", kinds=("job.closed",), user="ada"
    )


def test_a_tenant_has_bounded_slots_and_a_removal_frees_one() -> None:
    history = History()
    for number in range(OF_TENANT_MAX):
        assert history.say(setting(f"n{number}"))
    assert not history.say(setting("one-more"))
    assert history.say(setting("theirs", BLUE))
    assert history.cluster.notifications["blue.theirs"].slot == 0
    assert history.say(f.NotificationRemoved(tenant=RED, name="n3"))
    assert not history.say(f.NotificationRemoved(tenant=RED, name="n3"))
    assert history.say(setting("one-more"))
    assert history.cluster.notifications["red.one-more"].slot == 3


def test_a_change_keeps_slot_and_beginning() -> None:
    history = History()
    history.say(setting("a"))
    before = history.cluster.notifications["red.a"]
    history.say(setting("a"))
    after = history.cluster.notifications["red.a"]
    assert (after.slot, after.created_seq) == (before.slot, before.created_seq)


def test_the_cluster_has_a_bounded_number_of_destinations() -> None:
    history = History()
    full = {f"t{n}.d": destination(tenant=TenantId(f"t{n}")) for n in range(DESTINATIONS_MAX)}
    history.cluster.notifications.update(full)
    assert not history.say(setting("a"))
