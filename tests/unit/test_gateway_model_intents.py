"""Requests about models: what is recorded, what is refused and in which words."""

from typing import Any

import pytest

from libs.common.errors import Refused
from libs.common.facts import ModelDeployed, ModelScaled, ModelUndeployed
from libs.common.life import kept_life
from libs.common.model import JobId, TenantId
from libs.common.model_spec import ModelSpec
from libs.common.scaling_targets import ScalingTargets
from libs.common.state import model_view
from libs.common.state.cluster import Cluster, Model, Tenant
from libs.common.state.former_models import FORMER_NS, FormerModel
from libs.common.state.kept import Kept, kept_key
from libs.common.state.model_view import SHARED_FIELDS
from libs.common.state.tenant import MODELS_DEFAULT
from services.api_gateway.intents.job_intents import submission
from services.api_gateway.intents.model_intents import (
    check_count,
    deployment,
    redeployment,
    scaling,
    undeployment,
)

TENANT = TenantId("default")
HASH = "ab" * 32
BODY: dict[str, Any] = {"name": "chat", "command": ["serve", "{port}"]}


def known(**fields: Any) -> Model:
    spec = ModelSpec(command=("serve", "{port}"), gpu_share=50, startup_timeout_s=30, replicas=2)
    return Model(
        **{"name": "chat", "tenant": TENANT, "user": "ada", "spec": spec, "seq": 7, "replicas": 5}
        | fields
    )


def test_a_deployment_records_the_requested_fields() -> None:
    asked = {
        **BODY,
        "replicas": 2,
        "fraction": 0.5,
        "startup_timeout": "10m",
        "health_path": "/healthz",
        "user": "ada",
    }
    spec = ModelSpec(
        command=("serve", "{port}"),
        replicas=2,
        gpu_share=50,
        startup_timeout_s=600,
        health_path="/healthz",
    )
    assert deployment(asked, None, TENANT) == ModelDeployed(
        name="chat", spec=spec, tenant=TENANT, user="ada"
    )


def test_deployed_models_of_a_tenant_are_bounded() -> None:
    cluster = Cluster()
    for number in range(2):
        cluster.models[f"m-{number}"] = known(name=f"m-{number}")
    cluster.models["old"] = known(name="old", deployed=False)
    cluster.models["foreign"] = known(name="foreign", tenant=TenantId("physics"))
    check_count(cluster, Tenant(TENANT, max_models=3), "chat", 0)
    check_count(cluster, Tenant(TENANT), "chat", 0)
    with pytest.raises(Refused, match="may have 2 deployed models and has 2: undeploy one"):
        check_count(cluster, Tenant(TENANT, max_models=2), "chat", 0)
    assert Tenant(TENANT).models_max == MODELS_DEFAULT


def test_new_names_are_bounded_by_the_models_undeployed_within_an_hour() -> None:
    cluster, tenant = Cluster(), Tenant(TENANT, max_models=MODELS_DEFAULT + 1)
    for number in range(MODELS_DEFAULT):
        name = f"m-{number}"
        cluster.models[name] = known(name=name, deployed=False, undeployed_ns=5)
    check_count(cluster, tenant, "chat", 5)
    for refused in (Tenant(TENANT), Tenant(TENANT, max_models=1)):
        with pytest.raises(
            Refused, match=f"has {MODELS_DEFAULT} undeployed models that still count"
        ):
            check_count(cluster, refused, "chat", 5 + FORMER_NS - 1)
    check_count(cluster, Tenant(TENANT), "m-0", 5)
    check_count(cluster, Tenant(TENANT), "chat", 5 + FORMER_NS)
    check_count(cluster, Tenant(TenantId("physics")), "chat", 5)


def test_undeployed_models_that_nodes_keep_data_of_count_for_as_long() -> None:
    cluster = Cluster()
    for number in range(MODELS_DEFAULT):
        name = f"m-{number}"
        cluster.models[name] = known(name=name, deployed=False, undeployed_ns=5)
        cluster.kept[kept_key(name, kept_life.HOST)] = Kept(name, kept_life.HOST, TENANT, "ada", 1)
    with pytest.raises(Refused, match="muster model drop"):
        check_count(cluster, Tenant(TENANT), "chat", 5 + FORMER_NS)


def test_a_name_with_a_record_alone_is_no_new_name() -> None:
    cluster = Cluster(former_models={"old": FormerModel(TENANT, 1, 1, 1)})
    for number in range(MODELS_DEFAULT):
        cluster.models[f"m-{number}"] = known(name=f"m-{number}", deployed=False, undeployed_ns=5)
    check_count(cluster, Tenant(TENANT), "old", 5)


def test_a_variable_may_hold_the_replica_s_own_key_and_no_other() -> None:
    own = deployment({**BODY, "env": {"VLLM_API_KEY": "{key}"}}, None, TENANT)
    assert own.spec.env == {"VLLM_API_KEY": "{key}"}
    with pytest.raises(Refused, match="looks like a secret"):
        deployment({**BODY, "env": {"VLLM_API_KEY": "{key}x"}}, None, TENANT)


def test_only_a_replica_that_names_them_has_a_key_and_the_address_of_its_node() -> None:
    def serve(command: tuple[str, ...], **env: str) -> tuple[bool, bool]:
        found = model_view.replica_spec(ModelSpec(command=command, env=env), "chat", 1).serve
        assert found is not None
        return found.keyed, found.hosted

    assert serve(("serve", "{port}", "{key}"), A="{host}") == (False, False)
    assert serve(("serve", "{port}"), A="Bearer {key}") == (True, False)
    assert serve(("serve", "{host}:{port}")) == (False, True)


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"name": ""}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": "x" * 64}, "name"),
        ({"command": []}, "command"),
        ({"command": "serve"}, "command"),
        ({"replicas": -1}, "replicas"),
        ({"replicas": 1_001}, "replicas"),
        ({"replicas": "two"}, "replicas"),
        ({"gpus": 0}, "gpus"),
        ({"fraction": 1.5}, "fraction"),
        ({"fraction": 0.5, "gpu_share": 50}, "fraction"),
        ({"health_path": "health"}, "health_path"),
        ({"health_path": "/a b"}, "health_path"),
        ({"health_path": "/a\r\nHost: b"}, "health_path"),
        ({"startup_timeout": "0"}, "startup_timeout_s"),
        ({"env": {"A B": "1"}}, "env"),
        ({"workdir": "here"}, "workdir"),
        ({"workdir": "/srv", "upload": "ab"}, "upload"),
        ({"gpu_memory": "much"}, "gpu_memory"),
        ({"fraction": 0.5, "mig_profile": "1g.10gb"}, "mig_profile"),
        ({"numa": "maybe"}, "numa"),
        ({"rack": "required"}, "rack"),
        ({"serve": None}, "serve"),
        ({"user": "a b"}, "user"),
    ],
)
def test_invalid_value_is_refused_with_its_name(more: dict[str, Any], word: str) -> None:
    with pytest.raises(Refused, match=f"(?i){word}"):
        deployment({**BODY, **more}, None, TENANT)


def test_a_model_may_say_where_its_replicas_run_in_the_words_of_a_job() -> None:
    asked = {
        "model": "H100|H200",
        "gpu_memory": "20GiB",
        "cpus": 8,
        "node_labels": {"disk": "ssd"},
        "interconnect": "required",
        "gpus": 2,
    }
    spec = deployment({**BODY, **asked}, None, TENANT).spec
    job = submission({"command": BODY["command"], **asked}, JobId("j")).spec
    assert {name: getattr(spec, name) for name in SHARED_FIELDS} == {
        name: getattr(job, name) for name in SHARED_FIELDS
    }
    assert (spec.model, spec.gpu_memory_bytes, spec.cpus_milli) == (
        ("H100", "H200"),
        20 << 30,
        8_000,
    )


@pytest.mark.parametrize(
    ("before", "said", "after"),
    [
        (
            {"gpu_share": 50},
            {"gpu_memory": "20GiB"},
            {"gpu_share": 100, "gpu_memory_bytes": 20 << 30},
        ),
        ({"mig_profile": "1g.10gb"}, {"fraction": 0.25}, {"gpu_share": 25, "mig_profile": ""}),
        ({"upload": HASH}, {"workdir": "/srv"}, {"upload": "", "workdir": "/srv"}),
        ({"workdir": "/srv"}, {"upload": HASH}, {"upload": HASH, "workdir": ""}),
        (
            {"upload": HASH, "model": ("H100",)},
            {"vendor": "nvidia"},
            {"upload": HASH, "model": ("H100",), "vendor": "nvidia"},
        ),
    ],
)
def test_a_redeployment_that_says_another_way_takes_back_the_one_before(
    before: dict[str, Any], said: Any, after: dict[str, Any]
) -> None:
    deployed = Model(
        name="chat",
        tenant=TENANT,
        user="ada",
        spec=ModelSpec(command=("serve",), **before),
        seq=7,
        replicas=1,
    )
    spec = redeployment(said, deployed).spec
    assert {name: getattr(spec, name) for name in after} == after


def test_a_name_that_is_deployed_is_refused_and_one_that_was_is_free() -> None:
    with pytest.raises(Refused, match="deployed already"):
        deployment(BODY, known(), TENANT)
    assert deployment(BODY, known(deployed=False), TENANT).name == "chat"


def test_a_redeployment_changes_what_it_names_and_keeps_the_number_that_is_wanted_now() -> None:
    same = redeployment(None, known())
    assert same == ModelDeployed(
        name="chat",
        spec=ModelSpec(command=("serve", "{port}"), gpu_share=50, startup_timeout_s=30, replicas=5),
        tenant=TENANT,
        user="ada",
    )
    other = redeployment(
        {"command": ["new"], "startup_timeout": 60, "fraction": 1.0, "user": "bob"}, known()
    )
    assert (
        other.spec.command,
        other.spec.startup_timeout_s,
        other.spec.gpu_share,
        other.spec.replicas,
    ) == (("new",), 60, 100, 5)
    assert other.user == "bob"


def test_a_scaling_is_a_whole_number_within_bounds() -> None:
    assert scaling({"replicas": 0}, known()) == ModelScaled(name="chat", replicas=0, tenant=TENANT)
    for wrong in (
        {},
        {"replicas": 1.5},
        {"replicas": True},
        {"replicas": -1},
        {"replicas": 5_000},
        {"replica": 1},
    ):
        with pytest.raises(Refused):
            scaling(wrong, known())


SCALES: dict[str, Any] = {"replicas_min": 0, "replicas_max": 8, "first_token_ms": 500}
TARGETS = ScalingTargets(replicas_min=0, replicas_max=8, first_token_ms=500)


def test_a_model_that_scales_begins_with_one_replica_or_the_least() -> None:
    asleep = deployment({**BODY, "scaling": SCALES}, None, TENANT).spec
    assert (asleep.scaling, asleep.replicas) == (TARGETS, 1)
    more = {**SCALES, "replicas_min": 2, "idle_s": "10m"}
    spec = deployment({**BODY, "scaling": more}, None, TENANT).spec
    assert spec.replicas == 2 and spec.scaling is not None and spec.scaling.idle_s == 600
    assert deployment({**BODY, "scaling": SCALES, "replicas": 3}, None, TENANT).spec.replicas == 3


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("0..8", "scaling: not an object"),
        ({"first_token_ms": 500}, "replicas_max: missing"),
        ({**SCALES, "replicas_min": 9}, "9 is more than replicas_max 8"),
        ({"replicas_max": 8}, "no target"),
        ({**SCALES, "replicas_max": 1_001}, "scaling.replicas_max"),
        ({**SCALES, "concurrency": -1}, "scaling.concurrency"),
        ({**SCALES, "targets": 1}, "targets"),
        ({**SCALES, "first_token_ms": "fast"}, "first_token_ms"),
    ],
)
def test_a_wrong_scaling_is_refused_by_the_name_of_its_field(wrong: object, words: str) -> None:
    with pytest.raises(Refused, match=words):
        deployment({**BODY, "scaling": wrong}, None, TENANT)


def test_the_number_to_begin_with_must_be_within_the_bounds() -> None:
    with pytest.raises(Refused, match="outside 0 to 8"):
        deployment({**BODY, "scaling": SCALES, "replicas": 9}, None, TENANT)


def test_a_redeployment_keeps_the_present_number_of_a_model_that_scales() -> None:
    spec = ModelSpec(command=("serve",), scaling=TARGETS, replicas=1)
    model = known(spec=spec, autoscaled=6, scaled_generation=1)
    assert redeployment(None, model).spec.replicas == 6
    narrower = redeployment({"scaling": {**SCALES, "replicas_max": 4}}, model).spec
    assert narrower.replicas == 4 and narrower.scaling is not None
    fixed = redeployment({"replicas": 2}, model).spec
    assert (fixed.replicas, fixed.scaling) == (2, None)


def test_the_number_of_a_model_that_scales_cannot_be_set() -> None:
    spec = ModelSpec(command=("serve",), scaling=TARGETS)
    with pytest.raises(Refused, match="keeps between 0 and 8 replicas of chat"):
        scaling({"replicas": 2}, known(spec=spec))


def test_an_image_of_a_model_becomes_that_of_its_replicas_and_is_checked() -> None:
    spec = deployment({**BODY, "image": "vllm/vllm-openai:v0.31"}, None, TENANT).spec
    assert model_view.replica_spec(spec, "chat", 1).image == "vllm/vllm-openai:v0.31"
    with pytest.raises(Refused, match="'a b' is not an image name"):
        deployment({**BODY, "image": "a b"}, None, TENANT)


def test_an_undeployment_says_who() -> None:
    assert undeployment({"user": "ada"}, known()) == ModelUndeployed(
        name="chat", user="ada", tenant=TENANT
    )
    assert undeployment(None, known()) == ModelUndeployed(name="chat", tenant=TENANT)
