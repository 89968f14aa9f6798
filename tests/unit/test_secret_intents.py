"""Requests about secrets; no refusal quotes a value."""

import pytest

from libs.common.errors import Refused
from libs.common.facts import SecretRemoved, SecretSet
from libs.common.model import TenantId
from libs.common.state.cluster import Cluster, Secret
from services.api_gateway.intents.secret_intents import VALUE_BYTES_MAX, check, removal, setting
from services.api_gateway.problems import Problem

T = TenantId("physics")


def cluster() -> Cluster:
    return Cluster(secrets={"physics.hf-token": Secret(T, "hf-token", 2, 0)})


def test_a_new_secret_is_version_1_and_a_known_one_the_next() -> None:
    assert setting(body={"value": "v"}, cluster=Cluster(), tenant=T, name="a", user="ada") == (
        SecretSet(tenant=T, name="a", version=1, user="ada"),
        "v",
    )
    assert (
        setting(body={"value": "v"}, cluster=cluster(), tenant=T, name="hf-token", user="ada")[
            0
        ].version
        == 3
    )


@pytest.mark.parametrize("value", ["", "a\0b", 5, None, "hunter2" * VALUE_BYTES_MAX])
def test_a_value_that_cannot_be_kept_is_refused_without_being_quoted(value: object) -> None:
    with pytest.raises(Refused) as refused:
        setting(body={"value": value}, cluster=Cluster(), tenant=T, name="a", user="ada")
    assert "hunter2" not in str(refused.value) and len(str(refused.value)) < 200


def test_a_secret_for_a_registry_is_a_user_name_and_a_password() -> None:
    login = '{"username": "ann", "password": "hunter2"}'
    made = setting(
        body={"value": login}, cluster=Cluster(), tenant=T, name="registry.r.example", user="ada"
    )
    assert made[1] == login
    for value in ("hunter2", '{"username": "hunter2"}', '{"username": 5, "password": "hunter2"}'):
        with pytest.raises(Refused, match="muster secret set --registry") as refused:
            setting(
                body={"value": value}, cluster=Cluster(), tenant=T, name="registry.r", user="ada"
            )
        assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("name", ["", "-a", "a/b", "a b", "x" * 64])
def test_a_name_that_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(Refused):
        setting(body={"value": "v"}, cluster=Cluster(), tenant=T, name=name, user="ada")


def test_only_what_is_there_is_removed() -> None:
    assert removal(cluster(), T, "hf-token", "ada") == SecretRemoved(
        tenant=T, name="hf-token", user="ada"
    )
    with pytest.raises(Problem):
        removal(cluster(), "chemistry", "hf-token", "ada")


def test_a_job_may_name_its_own_tenant_s_secrets() -> None:
    check(cluster(), T, {"HF_TOKEN": "hf-token"}, {"OTHER": "1"})


@pytest.mark.parametrize(
    ("tenant", "secrets"),
    [
        ("chemistry", {"HF": "hf-token"}),
        (T, {"HF": "none"}),
        (T, {"MUSTER_X": "hf-token"}),
        (T, {"PATH": "hf-token"}),
        (T, {"OTHER": "hf-token"}),
        (T, {"a-b": "hf-token"}),
    ],
)
def test_a_job_may_not_name_another_s_or_a_variable_twice(
    tenant: str, secrets: dict[str, str]
) -> None:
    with pytest.raises(Refused):
        check(cluster(), tenant, secrets, {"OTHER": "1"})
