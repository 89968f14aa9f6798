"""Adapters in the state, and which path is below a folder."""

import pytest

from libs.common import facts as f
from libs.common.adapters import Adapter, AdapterRules, is_below
from libs.common.facts import AnyFact
from libs.common.model import TenantId
from libs.common.model_spec import ModelSpec
from tests.given import given

SPEC = ModelSpec(command=("serve",), adapters=AdapterRules(root="/lora"))
DEPLOYED = f.ModelDeployed(name="chat", spec=SPEC, tenant=TenantId("a"), user="ada")


def added(name: str, path: str = "/lora/a", removed: bool = False) -> f.ModelAdapterSet:
    return f.ModelAdapterSet(name="chat", adapter=name, path=path, removed=removed, user="ada")


def paths(*facts: AnyFact) -> dict[str, str]:
    adapters = given(*facts).cluster.models["chat"].adapters
    return {name: adapter.path for name, adapter in adapters.items()}


@pytest.mark.parametrize("path", ["/lora/a", "/lora/a/b", "/lora/..a"])
def test_a_path_inside_the_folder_is_below_it(path: str) -> None:
    assert is_below(path, "/lora") and is_below(path, "/lora/")


@pytest.mark.parametrize(
    "path",
    [
        *("", "/", "/lora", "/lora/", "/lor/a", "/lora2/a", "lora/a", "a", "/etc/passwd"),
        *("/lora/../a", "/lora/a/..", "/lora/..", "/lora/./a", "/lora//a", "/lora/a/"),
    ],
)
def test_any_other_path_is_outside(path: str) -> None:
    assert not is_below(path, "/lora")


def test_nothing_is_below_a_folder_that_is_not_given() -> None:
    assert not is_below("/lora/a", "")


def test_adapters_are_added_and_removed() -> None:
    model = given(DEPLOYED, added("sql"), added("code", "/lora/code")).cluster.models["chat"]
    assert model.adapters["sql"] == Adapter("/lora/a", 3, model.adapters["sql"].at_ns, "ada")
    assert not model.adapters_dropped
    assert paths(DEPLOYED, added("sql"), added("code"), added("sql", removed=True)) == {
        "code": "/lora/a"
    }


def test_another_path_is_another_version() -> None:
    model = given(DEPLOYED, added("sql"), added("sql", "/lora/new")).cluster.models["chat"]
    assert (model.adapters["sql"].path, model.adapters["sql"].seq) == ("/lora/new", 4)
    assert model.adapters_dropped


def test_facts_that_change_nothing_are_ignored() -> None:
    cluster = given(
        *(added("sql"), DEPLOYED, added("sql", removed=True), added("sql"), added("sql"))
    ).cluster
    assert cluster.ignored == 3 and not cluster.models["chat"].adapters_dropped


def test_a_redeployed_model_keeps_its_adapters_and_an_undeployed_one_loses_them() -> None:
    assert paths(DEPLOYED, added("sql"), DEPLOYED) == {"sql": "/lora/a"}
    gone = DEPLOYED, added("b"), added("b", removed=True), f.ModelUndeployed(name="chat")
    model = given(*gone, DEPLOYED).cluster.models["chat"]
    assert model.adapters == {} and not model.adapters_dropped


def test_a_fact_about_another_tenant_s_model_of_the_same_name_is_ignored() -> None:
    fact = f.ModelAdapterSet(name="chat", adapter="sql", path="/lora/a", tenant=TenantId("b"))
    assert paths(DEPLOYED, fact) == {}
