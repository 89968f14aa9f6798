"""Requests about aliases and guests: what is recorded, what is refused and in which words."""

from typing import Any

import pytest

from libs.common.errors import Refused
from libs.common.facts import ModelAliasSet, ModelDeployed, ModelShareSet
from libs.common.model import TenantId
from libs.common.model_spec import ModelSpec
from libs.common.state.cluster import Cluster, Model
from services.api_gateway.intents import model_names
from services.api_gateway.intents.model_intents import deployment, redeployment
from services.api_gateway.intents.model_names import ALIASES_MAX, GUESTS_MAX
from tests.given import given

A = TenantId("a")
BODY: dict[str, Any] = {"name": "qwen", "command": ["serve", "{port}"]}


def world() -> tuple[Cluster, Model]:
    spec = ModelSpec(command=("serve",))
    served = ModelSpec(command=("serve",), served_name="Org/M")
    cluster = given(
        ModelDeployed(name="x", spec=spec, tenant=A),
        ModelDeployed(name="y", spec=served, tenant=A),
        ModelDeployed(name="theirs", spec=spec, tenant=TenantId("b")),
        ModelAliasSet(name="x", alias="old"),
        ModelAliasSet(name="y", alias="taken"),
        ModelShareSet(name="x", guest="b"),
    ).cluster
    return cluster, cluster.models["x"]


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen2.5-7B", "llama3:8b", "/models/llama", "a@b", "M_1+x", "a" * 128]
)
def test_a_name_as_model_servers_use_it_is_accepted(name: str) -> None:
    made = deployment({**BODY, "served_name": name}, None, A)
    assert made.spec.served_name == name
    assert model_names.aliases(*world(), {"add": [name]}) == [
        ModelAliasSet(name="x", alias=name, tenant=A)
    ]


@pytest.mark.parametrize(
    "name", ["", "a//b", "../x", "a/../b", "a b", "a\n", "é", "-a", "a/", "a" * 129, "a?b", "a%2f"]
)
def test_another_name_is_refused_with_the_rule(name: str) -> None:
    with pytest.raises(Refused, match=r"letters, digits and \._:@\+-/"):
        model_names.aliases(*world(), {"add": [name]})
    if name:
        with pytest.raises(Refused, match=r"served_name: .* is not valid: use letters"):
            deployment({**BODY, "served_name": name}, None, A)


def test_a_deployment_with_a_slash_in_its_name_is_told_where_that_name_goes() -> None:
    with pytest.raises(Refused, match="goes into served_name"):
        deployment({**BODY, "name": "Qwen/Qwen2.5-7B"}, None, A)


def test_a_redeployment_keeps_the_served_name_unless_it_gives_another() -> None:
    _, model = world()
    model.spec = ModelSpec(command=("serve",), served_name="Org/M")
    assert redeployment({}, model).spec.served_name == "Org/M"
    assert redeployment({"served_name": ""}, model).spec.served_name == ""


def test_aliases_are_added_and_removed_in_one_request() -> None:
    body = {"add": ["new", "new", "old"], "remove": ["old"], "user": "ada"}
    assert model_names.aliases(*world(), body) == [
        ModelAliasSet(name="x", alias="old", removed=True, user="ada", tenant=A),
        ModelAliasSet(name="x", alias="new", user="ada", tenant=A),
    ]


def test_an_alias_that_the_model_has_already_is_not_recorded_again() -> None:
    assert model_names.aliases(*world(), {"add": ["old"]}) == []


@pytest.mark.parametrize("name", ["y", "taken", "Org/M"])
def test_a_name_of_another_model_of_the_tenant_is_refused_with_that_model(name: str) -> None:
    with pytest.raises(Refused, match=f"{name} is a name of model y already"):
        model_names.aliases(*world(), {"add": [name]})


def test_a_name_of_another_tenant_s_model_is_accepted_and_says_nothing_about_it() -> None:
    assert model_names.aliases(*world(), {"add": ["theirs"]}) == [
        ModelAliasSet(name="x", alias="theirs", tenant=A)
    ]


@pytest.mark.parametrize("body", [{}, {"user": "ada"}, {"add": []}, {"add": "a"}, {"more": 1}, 7])
def test_a_body_that_asks_for_nothing_is_refused(body: object) -> None:
    with pytest.raises(Refused):
        model_names.aliases(*world(), body)


def test_what_is_not_there_cannot_be_removed() -> None:
    with pytest.raises(Refused, match="does not have the alias 'nix': it has old"):
        model_names.aliases(*world(), {"remove": ["nix"]})
    with pytest.raises(Refused, match="does not have the tenant 'nix': it has b"):
        model_names.guests(*world(), {"remove": ["nix"]}, False)


def test_the_numbers_of_aliases_and_of_guests_are_bounded() -> None:
    names = [f"n{number}" for number in range(ALIASES_MAX)]
    with pytest.raises(Refused, match=f"{ALIASES_MAX + 1} aliases: at most {ALIASES_MAX}"):
        model_names.aliases(*world(), {"add": names})
    assert len(model_names.aliases(*world(), {"add": names, "remove": ["old"]})) == ALIASES_MAX + 1
    guests = [f"n{number}" for number in range(GUESTS_MAX)]
    with pytest.raises(Refused, match=f"{GUESTS_MAX + 1} tenants: at most {GUESTS_MAX}"):
        model_names.guests(*world(), {"add": guests}, False)


def test_a_model_is_shared_with_tenants_or_with_all() -> None:
    asked = {"add": ["c", "*"], "remove": ["b"]}
    assert model_names.guests(*world(), asked, False) == [
        ModelShareSet(name="x", guest="b", removed=True, tenant=A),
        ModelShareSet(name="x", guest="c", tenant=A),
        ModelShareSet(name="x", guest="*", tenant=A),
    ]


@pytest.mark.parametrize(("guest", "word"), [("B c", "small letters"), ("a", "belongs to")])
def test_a_guest_that_cannot_be_one_is_refused(guest: str, word: str) -> None:
    with pytest.raises(Refused, match=word):
        model_names.guests(*world(), {"add": [guest]}, False)


def test_only_operators_learn_that_a_tenant_does_not_exist() -> None:
    with pytest.raises(Refused, match="tenant nix does not exist"):
        model_names.guests(*world(), {"add": ["nix"]}, True)
    assert len(model_names.guests(*world(), {"add": ["nix"]}, False)) == 1
    assert len(model_names.guests(*world(), {"add": ["*"]}, True)) == 1
