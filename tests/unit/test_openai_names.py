"""Which model a name stands for, by the tenant that asks."""

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import TenantId
from libs.common.model_spec import ModelSpec
from libs.common.state.former_models import FORMER_NS
from services.api_gateway.openai.names import Hidden, Names, is_guest, names_of
from tests.given import given


def deployed(name: str, tenant: str, served_name: str = "") -> f.ModelDeployed:
    spec = ModelSpec(command=("serve",), served_name=served_name)
    return f.ModelDeployed(name=name, spec=spec, tenant=TenantId(tenant))


def alias(name: str, *given: str) -> list[AnyFact]:
    return [f.ModelAliasSet(name=name, alias=each) for each in given]


def share(name: str, guest: str, removed: bool = False) -> f.ModelShareSet:
    return f.ModelShareSet(name=name, guest=guest, removed=removed)


def names(*facts: AnyFact | list[AnyFact]) -> Names:
    return Names(given(*facts).cluster, 0)


def test_a_model_has_its_name_its_aliases_and_the_name_that_its_server_knows() -> None:
    facts = deployed("qwen", "a", "Qwen/Qwen2.5-7B"), alias("qwen", "gpt-4o", "small")
    table = names(*facts).table("a", False)
    assert table == dict.fromkeys(("qwen", "gpt-4o", "small", "Qwen/Qwen2.5-7B"), "qwen")
    model = given(*facts).cluster.models["qwen"]
    assert list(names_of(model)) == ["qwen", "gpt-4o", "small", "Qwen/Qwen2.5-7B"]


def test_a_model_without_other_names_has_its_own_alone() -> None:
    assert list(names_of(given(deployed("qwen", "a")).cluster.models["qwen"])) == ["qwen"]


def test_guests_are_those_that_a_model_is_shared_with() -> None:
    model = given(deployed("qwen", "a"), share("qwen", "b")).cluster.models["qwen"]
    assert is_guest(model, "b") and not is_guest(model, "c")
    shared = given(deployed("qwen", "a"), share("qwen", "*")).cluster.models["qwen"]
    assert is_guest(shared, "c")


def test_a_model_that_is_shared_with_its_own_tenant_has_no_names_twice() -> None:
    found = names(deployed("qwen", "a"), share("qwen", "a"))
    assert found.table("a", False) == {"qwen": "qwen"}


def test_another_tenant_has_none_of_these_names() -> None:
    found = names(deployed("qwen", "a", "Qwen/Qwen2.5-7B"), alias("qwen", "gpt-4o"))
    assert found.table("b", False) == {}


def test_an_operator_reaches_models_of_other_tenants_by_their_names_only() -> None:
    found = names(deployed("qwen", "a"), alias("qwen", "gpt-4o"), deployed("own", "b"))
    assert found.table("b", True) == {"own": "own", "qwen": "qwen"}


def test_the_same_alias_is_another_model_in_another_tenant() -> None:
    found = names(deployed("x", "a"), alias("x", "m"), deployed("y", "b"), alias("y", "m"))
    assert found.table("a", False)["m"] == "x" and found.table("b", False)["m"] == "y"


def test_a_model_s_own_name_is_stronger_than_an_alias_and_that_than_a_served_name() -> None:
    found = names(
        deployed("x", "a"),
        alias("x", "y", "Org/M"),
        deployed("y", "a", "Org/M"),
        deployed("z", "a", "Org/M"),
    ).table("a", False)
    assert found == {"x": "x", "y": "y", "z": "z", "Org/M": "x"}


def test_of_two_models_with_one_served_name_the_older_one_has_it() -> None:
    found = names(deployed("z", "a", "Org/M"), deployed("b", "a", "Org/M")).table("a", False)
    assert found["Org/M"] == "z"


def test_a_shared_model_is_reached_by_all_its_names_until_it_is_shared_no_longer() -> None:
    facts = deployed("x", "a", "Org/M"), alias("x", "m"), share("x", "b")
    assert names(*facts).table("b", False) == {"x": "x", "m": "x", "Org/M": "x"}
    assert names(*facts).table("c", False) == {}
    assert names(*facts, share("x", "b", removed=True)).table("b", False) == {}


def test_a_model_that_is_shared_with_all_tenants_is_reached_by_each() -> None:
    found = names(deployed("x", "a"), share("x", "*"))
    assert found.table("b", False) == found.table("c", False) == {"x": "x"}


def test_a_shared_model_never_takes_a_name_of_the_guest_s_own_models() -> None:
    """A tenant that shares a model with all tenants gets none of their requests by that."""
    found = names(
        *(deployed("gpt-4o", "evil"), share("gpt-4o", "*"), alias("gpt-4o", "own", "served")),
        *(deployed("own", "b", "served"), alias("own", "gpt-4o")),
    )
    assert found.table("b", False) == dict.fromkeys(("own", "gpt-4o", "served"), "own")
    assert found.table("c", False)["gpt-4o"] == "gpt-4o"


def test_a_model_for_everyone_takes_no_name_of_the_guest_s_undeployed_models() -> None:
    own = deployed("llama", "b", "Org/M"), f.ModelUndeployed(name="llama", tenant=TenantId("b"))
    theirs = deployed("x", "a", "Org/M"), alias("x", "llama", "chat")
    found = names(*own, *theirs, share("x", "*")).table("b", False)
    assert found == {"x": "x", "chat": "x"}
    chosen = names(*own, *theirs, share("x", "b")).table("b", False)
    assert chosen == dict.fromkeys(("x", "Org/M", "llama", "chat"), "x")


def test_an_undeployed_model_hides_one_for_everyone_for_an_hour_only() -> None:
    cluster = given(
        *(deployed("llama", "b", "Org/M"), f.ModelUndeployed(name="llama", tenant=TenantId("b"))),
        *(deployed("x", "a", "Org/M"), share("x", "*")),
    ).cluster
    until_ns = cluster.models["llama"].undeployed_ns + FORMER_NS
    before, after = Names(cluster, until_ns - 1), Names(cluster, until_ns)
    assert before.table("b", False) == {"x": "x"} and before.ends_ns == until_ns
    assert before.hidden("b", "Org/M") == Hidden("x", until_ns)
    assert before.hidden("b", "llama") is before.hidden("c", "Org/M") is None
    assert after.table("b", False) == {"x": "x", "Org/M": "x"} and after.ends_ns is None
    assert after.hidden("b", "Org/M") is None


def test_of_two_shared_models_with_one_alias_the_one_that_was_shared_first_has_it() -> None:
    found = names(
        *(deployed("x", "a"), deployed("y", "b"), alias("y", "m"), alias("x", "m")),
        *(share("y", "c"), share("x", "c"), share("x", "x")),
    )
    assert found.table("c", False) == {"m": "y", "x": "x", "y": "y"}


def test_a_later_alias_takes_no_name_of_a_model_that_was_shared_before() -> None:
    """Neither does an alias that is deployed as a name later, nor a changed served name."""
    facts = [
        *(deployed("mine", "evil"), share("mine", "*")),
        *(deployed("llama", "carol", "Org/Llama"), alias("llama", "gpt"), share("llama", "*")),
        *(alias("mine", "llama", "gpt"), deployed("mine", "evil", "Org/Llama")),
        *(deployed("other", "evil", "gpt"), share("other", "b"), share("mine", "b")),
    ]
    found = names(*facts).table("b", False)
    assert found["llama"] == found["gpt"] == found["Org/Llama"] == "llama"
    assert found["mine"] == "mine" and found["other"] == "other"


def test_a_fact_about_a_model_that_another_tenant_has_now_changes_nothing() -> None:
    a = TenantId("a")
    late = [
        f.ModelShareSet(name="x", guest="friend", tenant=a),
        f.ModelAliasSet(name="x", alias="m", tenant=a),
        f.ModelScaled(name="x", replicas=5, tenant=a),
        f.ModelUndeployed(name="x", tenant=a),
    ]
    whole = deployed("x", "a"), f.ModelUndeployed(name="x", tenant=a), deployed("x", "b")
    cluster = given(*whole, *late).cluster
    model = cluster.models["x"]
    assert (model.aliases, model.guests, model.replicas, model.deployed) == ({}, {}, 1, True)
    assert cluster.ignored == 4


def test_an_undeployed_model_loses_its_aliases_and_guests() -> None:
    facts = deployed("x", "a"), alias("x", "m"), share("x", "b"), f.ModelUndeployed(name="x")
    assert names(*facts).table("a", True) == names(*facts).table("b", False) == {}
    again = names(*facts, deployed("x", "c"))
    assert again.table("b", False) == {} and again.table("c", False) == {"x": "x"}


def test_a_redeployed_model_keeps_them() -> None:
    found = names(deployed("x", "a"), alias("x", "m"), share("x", "b"), deployed("x", "a"))
    assert found.table("b", False) == {"x": "x", "m": "x"}


def test_facts_about_a_model_that_is_not_deployed_and_removals_of_nothing_change_nothing() -> None:
    facts: list[AnyFact] = [
        *(*alias("x", "m"), share("x", "b"), deployed("x", "a"), share("x", "b", removed=True)),
        f.ModelAliasSet(name="x", alias="m", removed=True),
    ]
    cluster = given(*facts).cluster
    assert (cluster.models["x"].aliases, cluster.models["x"].guests) == ({}, {})
    assert cluster.ignored == 4


def test_the_table_of_a_tenant_is_made_once() -> None:
    found = names(deployed("x", "a"))
    assert found.table("a", False) is found.table("a", False)


def adapter(name: str, *given: str) -> list[AnyFact]:
    return [f.ModelAdapterSet(name=name, adapter=each, path=f"/lora/{each}") for each in given]


def test_an_adapter_is_named_alone_or_with_its_model() -> None:
    found = names(deployed("x", "a"), adapter("x", "sql"))
    assert found.table("a", False) == {"x": "x", "sql": "x:sql", "x:sql": "x:sql"}
    assert found.table("b", False) == {}
    assert found.table("b", True) == {"x": "x", "x:sql": "x:sql"}


def test_the_same_adapter_name_is_another_one_in_another_tenant() -> None:
    found = names(deployed("x", "a"), adapter("x", "s"), deployed("y", "b"), adapter("y", "s"))
    assert found.table("a", False)["s"] == "x:s" and found.table("b", False)["s"] == "y:s"


def test_names_of_models_are_stronger_than_adapters_and_the_first_adapter_has_the_short_name() -> (
    None
):
    found = names(
        *(deployed("x", "a"), deployed("z", "a"), adapter("z", "sql", "y", "m")),
        *(adapter("x", "sql"), deployed("y", "a", "m")),
    ).table("a", False)
    assert (found["sql"], found["x:sql"], found["y"], found["m"]) == ("z:sql", "x:sql", "y", "y")
    assert found["z:y"] == "z:y" and found["z:m"] == "z:m"


def test_a_guest_reaches_the_adapters_of_a_shared_model_and_its_own_ones_first() -> None:
    facts = deployed("x", "a"), adapter("x", "sql", "art"), share("x", "b")
    found = names(*facts, deployed("own", "b"), adapter("own", "sql")).table("b", False)
    assert (found["sql"], found["art"], found["x:sql"]) == ("own:sql", "x:art", "x:sql")
    assert "sql" not in names(*facts, f.ModelUndeployed(name="x")).table("b", False)


def test_a_later_adapter_takes_over_no_name_of_a_model_that_was_shared_earlier() -> None:
    found = names(
        *(deployed("y", "b"), share("y", "c"), alias("y", "sql")),
        *(deployed("x", "a"), share("x", "c"), adapter("x", "sql")),
    ).table("c", False)
    assert (found["sql"], found["x:sql"]) == ("y", "x:sql")
