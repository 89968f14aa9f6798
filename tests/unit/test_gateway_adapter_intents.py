"""Requests about adapters: what is recorded, what is refused and in which words."""

from typing import Any

import pytest

from libs.common.adapters import AdapterRules
from libs.common.errors import Refused
from libs.common.facts import ModelAdapterSet, ModelAliasSet, ModelDeployed
from libs.common.model import TenantId
from libs.common.model_spec import ModelSpec
from libs.common.state.cluster import Cluster, Model
from services.api_gateway.intents import adapter_intents as intents
from services.api_gateway.intents import model_names
from services.api_gateway.intents.model_intents import deployment, redeployment
from tests.given import given

A = TenantId("a")
BODY: dict[str, Any] = {"name": "m", "command": ["serve", "{port}"]}


def world(**rules: Any) -> tuple[Cluster, Model]:
    allowed = AdapterRules(**rules) if rules else None
    spec = ModelSpec(command=("serve",), adapters=allowed, served_name="Org/M")
    cluster = given(
        ModelDeployed(name="chat", spec=spec, tenant=A),
        ModelAliasSet(name="chat", alias="gpt"),
        ModelDeployed(name="other", spec=ModelSpec(command=("serve",)), tenant=TenantId("b")),
    ).cluster
    return cluster, cluster.models["chat"]


def test_a_deployment_allows_adapters_below_a_folder() -> None:
    body = {**BODY, "adapters": {"root": "/models/lora/"}}
    found = deployment(body, None, A).spec.adapters
    assert found == AdapterRules(root="/models/lora", api="vllm", resident_max=8)
    assert deployment({**BODY, "adapters": None}, None, A).spec.adapters is None
    assert intents.rules({"api": "none"}) == AdapterRules(root="", api="none")


@pytest.mark.parametrize(
    ("given_rules", "words"),
    [
        ("/lora", "adapters: not an object"),
        ({}, "adapters.root: missing"),
        ({"api": "sglang"}, "adapters.root: missing"),
        ({"root": "lora"}, "adapters.root: 'lora' is not valid"),
        ({"root": "/"}, "adapters.root: '/' is not valid"),
        ({"root": "/a/../b"}, "without .."),
        ({"root": "/" + 1_100 * "a"}, "is not valid"),
        ({"root": "/a\nb"}, "is not valid"),
        ({"root": "/a", "api": "tgi"}, "give one of vllm, sglang, none"),
        ({"root": "/a", "resident_max": 0}, "adapters.resident_max"),
        ({"root": "/a", "max": 3}, "is not known"),
    ],
)
def test_wrong_rules_are_refused(given_rules: object, words: str) -> None:
    with pytest.raises(Refused, match=words):
        intents.rules(given_rules)


def test_an_adapter_below_the_folder_is_recorded() -> None:
    fact = intents.setting(*world(root="/lora"), "sql", {"path": "/lora/sql/", "user": "ada"})
    assert fact == ModelAdapterSet(
        name="chat", adapter="sql", path="/lora/sql", user="ada", tenant=A
    )


@pytest.mark.parametrize(
    "path", ["/etc", "/lora", "/lora/../etc", "/lora2/x", "lora/x", "/lora/a\nb", "/lora//x"]
)
def test_a_path_outside_the_folder_is_refused(path: str) -> None:
    with pytest.raises(Refused, match="is outside the folder that the deployment of chat allows"):
        intents.setting(*world(root="/lora"), "sql", {"path": path})


def test_a_path_is_needed_unless_the_server_has_the_adapter() -> None:
    with pytest.raises(Refused, match="path: missing: give the adapter's folder below /lora"):
        intents.setting(*world(root="/lora"), "sql", None)
    assert intents.setting(*world(api="none"), "sql", None).path == ""
    with pytest.raises(Refused, match="leave it out"):
        intents.setting(*world(api="none"), "sql", {"path": "/lora/sql"})


def test_a_model_without_rules_takes_no_adapters() -> None:
    with pytest.raises(Refused, match="redeploy chat --adapters-root DIR"):
        intents.setting(*world(), "sql", {"path": "/lora/sql"})


@pytest.mark.parametrize("name", ["a/b", "a:b", "", "-a", "a b", "é", "a" * 129])
def test_a_name_that_is_not_valid_is_refused_with_the_rule(name: str) -> None:
    with pytest.raises(Refused, match=r"letters, digits and \._@\+-"):
        intents.setting(*world(root="/lora"), name, {"path": "/lora/sql"})


@pytest.mark.parametrize("name", ["chat", "gpt"])
def test_a_name_of_a_model_of_the_tenant_is_refused(name: str) -> None:
    with pytest.raises(Refused, match=f"{name} is a name of model chat already"):
        intents.setting(*world(root="/lora"), name, {"path": "/lora/sql"})


def test_the_name_of_another_tenant_s_model_is_free() -> None:
    assert intents.setting(*world(root="/lora"), "other", {"path": "/lora/x"}).adapter == "other"


def test_a_model_has_a_bounded_number_of_adapters() -> None:
    cluster, model = world(root="/lora")
    for number in range(intents.ADAPTERS_MAX):
        model.adapters[f"a{number}"] = given_adapter()
    with pytest.raises(Refused, match=f"has {intents.ADAPTERS_MAX} adapters, the maximum"):
        intents.setting(cluster, model, "sql", {"path": "/lora/sql"})
    assert intents.setting(cluster, model, "a1", {"path": "/lora/sql"}).adapter == "a1"


def given_adapter() -> Any:
    cluster = given(
        ModelDeployed(name="x", spec=ModelSpec(command=("serve",))),
        ModelAdapterSet(name="x", adapter="sql", path="/lora/sql"),
    ).cluster
    return cluster.models["x"].adapters["sql"]


def test_a_removal_names_the_adapter_and_the_user() -> None:
    _, model = world(root="/lora")
    fact = intents.removing(model, "sql", {"user": "ada"})
    assert fact == ModelAdapterSet(name="chat", adapter="sql", removed=True, user="ada", tenant=A)
    assert intents.removing(model, "sql", None).user == ""


def test_a_redeployment_must_allow_the_adapters_that_the_model_has() -> None:
    _, model = world(root="/lora")
    model.adapters["sql"] = given_adapter()
    assert redeployment({}, model).spec.adapters == AdapterRules(root="/lora")
    for rules in ({"root": "/other"}, None):
        with pytest.raises(Refused, match="muster adapter remove chat sql"):
            redeployment({"adapters": rules}, model)


def test_an_alias_cannot_be_the_name_of_an_adapter() -> None:
    cluster, model = world(root="/lora")
    model.adapters["sql"] = given_adapter()
    with pytest.raises(Refused, match="sql is an adapter of model chat"):
        model_names.aliases(cluster, model, {"add": ["sql"]})
