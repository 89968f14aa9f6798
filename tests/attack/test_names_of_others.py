"""A member reads why a job waits, what would start one, and what happened.

No name of another tenant's job, user or tenant is in it.
"""

import json
from contextlib import aclosing
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from libs.common import facts as f
from libs.common import subjects
from libs.common.facts import KINDS, AnyFact, ChargeLine
from libs.common.model import AttemptRef, JobId, NodeId, TenantId
from libs.common.model_spec import ModelSpec
from libs.common.state.notifications import Destination
from services.api_gateway.access import roles
from services.api_gateway.access.roles import Principal
from services.api_gateway.notify.messages import Notice
from services.api_gateway.views.others import seen_by
from services.scheduler.explain.asker import ANOTHER, WhyAsk
from services.scheduler.explain.explain import explain
from services.scheduler.questions.what_if import WhatIfAsk, what_if
from services.scheduler.questions.why_model import explain_model
from services.scheduler.state.state import State
from tests.given import given, member, placed, registered, spec, started, waiting
from tests.golden.examples import EXAMPLES
from tests.integration.gateway_world import World, gateway_world
from tests.unit.test_notify_rules import destination

J = JobId("j")
MINE = TenantId("mine")
# Parts of every name that the other tenant chose, or was given.
SECRET = "merger"


def mine(**fields: Any) -> list[AnyFact]:
    return waiting("j", tenant="mine", **fields)


def theirs(job: str, **fields: Any) -> list[AnyFact]:
    return waiting(f"jmerger{job}", tenant="merger-bank", name=f"blue-merger-{job}", **fields)


def on(job: str, *gpus: int) -> list[AnyFact]:
    return [placed(f"jmerger{job}", member("a", *gpus)), started(f"jmerger{job}", "a")]


def running(job: str, *gpus: int, **fields: Any) -> list[AnyFact]:
    return [*theirs(job, gpus=len(gpus), **fields), *on(job, *gpus)]


FAIR = f.QueueSet(queue="default", policy="fair_share")
SLICED = f.QueueSet(queue="default", policy="fair_share", time_slice_s=600)
SAVES = {"preemptible": True, "checkpoint_signal": 10, "checkpoint_grace_s": 60}
RESERVED = f.DevicesReserved(
    job_id=JobId("jmerger2"), attempt=1, members=(member("a", 0, 1, 2, 3),)
)
FOR_MINE = f.DevicesReserved(job_id=J, attempt=1, members=(member("a", 0, 1, 2, 3),))

STATES: dict[str, tuple[AnyFact | list[AnyFact], ...]] = {
    "their job runs where mine would": (running("1", 0, 1, 2, 3), mine(gpus=4)),
    "their job waits before mine": (
        running("1", 0, 1),
        theirs("2", gpus=4, priority=90),
        mine(gpus=4),
    ),
    "mine would fit but theirs is first": (
        running("1", 0, 1),
        theirs("2", gpus=4, priority=90),
        mine(gpus=1),
    ),
    "fair share lets theirs go first": (
        FAIR,
        running("1", 0, 1, 2),
        theirs("2", gpus=4),
        mine(gpus=4),
    ),
    "devices are kept for theirs": (
        running("1", 0, 1, 2, 3, **SAVES),
        theirs("2", gpus=4, priority=90),
        RESERVED,
        mine(gpus=4),
    ),
    "their job makes room for mine": (
        running("1", 0, 1, 2, 3, **SAVES),
        mine(gpus=4, priority=90),
        FOR_MINE,
    ),
    "mine takes turns with theirs": (
        SLICED,
        running("1", 0, 1, 2, 3, **SAVES),
        mine(gpus=4, **SAVES),
    ),
    "mine waits for theirs to end": (
        running("1", 0),
        mine(after=(("afterok", JobId("jmerger1")),)),
    ),
    "their reservation keeps the node": (
        f.ReservationSet(
            reservation="night",
            nodes=(NodeId("a"),),
            start_ns=0,
            end_ns=1 << 60,
            tenants=("merger-bank",),
            user="merger-ops",
        ),
        mine(gpus=4),
    ),
}


def state_of(name: str) -> State:
    state = given(registered("a"), *STATES[name])
    state.asker = MINE
    return state


@pytest.mark.parametrize("name", STATES)
def test_why_names_no_other_tenants_jobs(name: str) -> None:
    found = explain(state_of(name), J)
    assert SECRET not in json.dumps(found)
    assert found["answer"]


@pytest.mark.parametrize("name", STATES)
def test_whatif_names_no_other_tenants_jobs(name: str) -> None:
    found = what_if(state_of(name), WhatIfAsk(spec(gpus=4), MINE))
    assert SECRET not in json.dumps(found)


def test_the_proof_and_its_remedies_stay() -> None:
    found = explain(state_of("their job runs where mine would"), J)
    assert f"cancel {ANOTHER}, which has 4 GPUs" in found["changes"]
    ahead = explain(state_of("their job waits before mine"), J)
    assert [each["job_id"] for each in ahead["before"]] == [ANOTHER]
    assert ANOTHER in ahead["answer"]


def test_an_operator_sees_the_names() -> None:
    state = given(registered("a"), *STATES["their job runs where mine would"])
    assert "cancel blue-merger-1 (jmerger1), which has 4 GPUs" in explain(state, J)["changes"]


def test_why_of_ones_own_jobs_keeps_their_names() -> None:
    own = [
        *waiting("i", tenant="mine", gpus=4),
        placed("i", member("a", 0, 1, 2, 3)),
        started("i", "a"),
    ]
    state = given(registered("a"), own, mine(gpus=4))
    state.asker = MINE
    assert any(change.startswith("cancel i,") for change in explain(state, J)["changes"])


def test_several_jobs_of_other_tenants_are_counted() -> None:
    state = given(
        registered("a"),
        running("1", 0, 1, **SAVES),
        running("2", 2, 3, **SAVES),
        mine(gpus=4, priority=90),
        FOR_MINE,
    )
    state.asker = MINE
    assert "2 jobs of other tenants" in explain(state, J)["answer"]


def test_why_of_a_model_names_no_other_tenants_jobs() -> None:
    deployed = f.ModelDeployed(name="m", spec=ModelSpec(command=("x",), gpus=4), tenant=MINE)
    state = given(registered("a"), running("1", 0, 1, 2, 3), deployed)
    state.asker = MINE
    assert SECRET not in json.dumps(explain_model(state, "m"))


def test_a_question_without_an_asker_is_told_no_names() -> None:
    """An older gateway names no asker."""
    assert msgspec.msgpack.decode(msgspec.msgpack.encode({"job_id": "j"}), type=WhyAsk).asker == ""


async def test_the_gateway_names_the_asker(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    async def answer(subject: str, data: bytes) -> bytes:
        asked.append(msgspec.msgpack.decode(data))
        return b"{}"

    async with gateway_world(tmp_path) as world:
        await world.ask("PUT", "/v1/tenants/mine", 201)
        for verb in ("why", "whatif"):
            await world.bus.subscribe(subjects.ask_scheduler(verb), answer)
        async with world.as_("member", "ada", "mine") as ada, world.as_("operator", "olga") as olga:
            job = (await ada.submit())["id"]
            for who in (ada, olga):
                await who.ask("GET", f"/v1/jobs/{job}/why")
                await who.ask("POST", "/v1/whatif", json={"command": ["x"]})
    assert [each["asker"] for each in asked] == ["mine", "mine", None, None]


# Fields of facts that name jobs of the fact's own tenant.
OF_OWN_JOBS = {
    "array.element_begun.array",
    "job.submitted.spec",  # `after`: dependencies on jobs that the submitting user may see
    "replicas.scaled.add",
    "replicas.scaled.retire",
    "model.used.uses",  # without a tenant, so only operators read it
}


def names_jobs(of: object) -> bool:
    """Return whether values of the type contain ids of jobs."""
    if of is JobId or of is AttemptRef:
        return True
    if isinstance(of, type) and issubclass(of, msgspec.Struct):
        return any(map(names_jobs, get_type_hints(of).values()))
    return any(map(names_jobs, get_args(of)))


NAMING = [
    (kind, name)
    for kind, fact in KINDS.items()
    for name, of in get_type_hints(fact).items()
    if name != "job_id" and names_jobs(of) and f"{kind}.{name}" not in OF_OWN_JOBS
]


@pytest.mark.parametrize(("kind", "name"), NAMING)
def test_no_field_of_a_fact_names_another_tenants_job(kind: str, name: str) -> None:
    fact_type = KINDS[kind]
    example = next(each for each in EXAMPLES if isinstance(each, fact_type))
    state = given(mine(), theirs("1"))
    for job in (JobId("jmerger1"), JobId("jmerger-gone")):
        of = get_type_hints(fact_type)[name]
        one: object = AttemptRef(job, 1) if AttemptRef in get_args(of) else job
        said = msgspec.structs.replace(example, **{name: one if of is JobId else (one,)})
        seen = seen_by(Principal("k", "mine", "ada", roles.MEMBER), state.cluster, said)
        assert SECRET not in repr(seen)
        assert seen_by(Principal("k", "x", "op", roles.OPERATOR), state.cluster, said) == said
        own = msgspec.convert(
            json.loads(msgspec.json.encode(said).decode().replace(job, J)), fact_type
        )
        assert seen_by(Principal("k", "mine", "ada", roles.MEMBER), state.cluster, own) == own


async def test_history_events_and_jobs_name_no_other_tenants_jobs(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        for tenant in ("mine", "bank"):
            await world.ask("PUT", f"/v1/tenants/{tenant}", 201)
        async with (
            world.as_("member", "ada", "mine") as ada,
            world.as_("member", "eve", "bank") as eve,
        ):
            ada.writers = eve.writers = world.writers
            await world.writers.begin_term()
            await world.writers.register("n1", 2)
            victim = await ada.run_to("running")
            other = (await eve.submit())["id"]
            await world.writers.schedule(
                f.JobPreempted(
                    job_id=JobId(victim), attempt=1, by=JobId(other), signal=15, grace_ms=1
                )
            )
            error = f.GpuErrorSeen(
                node_id=NodeId("n1"),
                uuid=world.gateway.cluster.nodes[NodeId("n1")].gpus[0],
                error="xid 31",
                verdict="job",
                source="kernel",
                jobs=(AttemptRef(JobId(victim), 1), AttemptRef(JobId(other), 1)),
            )
            await world.writers.on("n1", error)
            await world.settle()
            reads = [
                f"/v1/jobs/{victim}",
                f"/v1/jobs/{victim}/history",
                "/v1/events",
                f"/v1/events?job={victim}",
            ]
            for path in reads:
                assert other not in json.dumps(await ada.ask("GET", path)), path
            assert (await ada.ask("GET", reads[0]))["preempted_by"] == ANOTHER
            assert other in json.dumps(await world.ask("GET", reads[1]))


async def test_a_tenant_that_takes_over_a_model_s_name_reads_nothing_of_the_former_owner(
    tmp_path: Path,
) -> None:
    async with gateway_world(tmp_path) as world:
        for tenant in ("mine", "bank"):
            await world.ask("PUT", f"/v1/tenants/{tenant}", 201)
        await world.writers.begin_term()
        await world.writers.register("n1", 2)

        async def deployed(user: World) -> int:
            body = {"name": "llama", "command": ["serve"]}
            await user.ask("POST", "/v1/deployments", 201, json=body)
            return world.gateway.cluster.seq

        async def kept(request: int, path: str) -> None:
            observed = f.KeptObserved(
                node_id=NodeId("n1"),
                model="llama",
                tier="memory",
                request=request,
                number=1,
                state="ready",
                files={path: "a" * 64},
            )
            await world.writers.on("n1", observed)
            scaled = f.ModelAutoscaled(name="llama", generation=1, replicas=1, law=path)
            await world.writers.schedule(scaled)

        async with (
            world.as_("member", "eve", "bank") as eve,
            world.as_("member", "ada", "mine") as ada,
        ):
            before = await deployed(eve)
            await kept(before, "merger-1")
            await eve.ask("DELETE", "/v1/deployments/llama", 202)
            after = await deployed(ada)
            await kept(after, "own")
            late = f.KeptEvicted(
                model="llama", tier="x", node_id=NodeId("n1"), request=before, reason="merger-2"
            )
            await world.writers.schedule(late)
            await world.settle()
            found = await ada.ask("GET", "/v1/events?kind=kept.,model.&after=0")
            sent = await notices(world, destination(tenant=MINE, kinds=("kept.", "model.")))
        kinds = [each["kind"] for each in found["events"]]
        assert kinds == ["model.deployed", "kept.observed", "model.autoscaled"]
        assert "merger" not in json.dumps(found) and "own" in json.dumps(found)
        assert [each.type for each in sent] == kinds
        assert SECRET not in repr(sent)


async def notices(world: World, wanted: Destination) -> list[Notice]:
    """Return what a notification whose position is the first commit sends."""
    found = []
    async with aclosing(world.gateway.entries.scan(0, world.gateway.cluster.seq)) as slices:
        async for piece in slices:
            for entry in piece:
                found += await world.gateway.notifier.chosen(wanted, entry)
    return [each.notice for each in found if each.notice is not None]


async def test_a_reservation_shows_no_other_tenants_and_users(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        await world.ask("PUT", "/v1/tenants/mine", 201)
        await world.writers.register("n1", 2)
        await world.settle()
        body = {
            "nodes": ["n1"],
            "duration": "1h",
            "tenants": ["default", "mine"],
            "users": ["mine/ada", "default/eve"],
        }
        await world.ask("PUT", "/v1/reservations/night", 201, json=body)
        async with world.as_("member", "ada", "mine") as ada:
            (shown,) = (await ada.ask("GET", "/v1/reservations"))["reservations"]
        assert (shown["tenants"], shown["users"], shown["user"], shown["nodes"]) == (
            ["mine"],
            ["mine/ada"],
            "",
            ["n1"],
        )


def test_the_owner_of_a_model_sees_of_a_guest_s_requests_the_tenant_alone() -> None:
    own = ChargeLine(MINE, "ada", "k1", 300)
    guest = ChargeLine(TenantId("merger-bank"), "merger-bob", "merger-k", 700)
    charged = f.UsageCharged(
        job_id=J, attempt=1, tenant=MINE, share_ms=1_000, user="ada", lines=(own, guest)
    )
    cluster = given(*mine()).cluster
    seen = seen_by(Principal("k1", "mine", "ada", roles.MEMBER), cluster, charged)
    assert isinstance(seen, f.UsageCharged) and seen.lines == (
        own,
        ChargeLine(TenantId("merger-bank"), "", "", 700),
    )
    assert seen_by(Principal("k", "x", "op", roles.OPERATOR), cluster, charged) == charged
