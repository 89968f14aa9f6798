"""Which node has a device that several register: the first of those that are not lost, in whatever
order the facts came.
"""

from itertools import permutations

import msgspec
import pytest

from libs.common import facts as f
from libs.common import fold
from libs.common.facts import AnyFact
from libs.common.folds.claim_fold import BIRTHS_MAX, UUIDS_MAX
from libs.common.model import GpuId
from libs.common.state.cluster import Cluster
from services.api_gateway.views.nodes import ContestShown, node_shown
from tests.history import (
    History,
    begun,
    copy,
    faulted,
    lost,
    node,
    picture,
    recovered,
    registered,
    returned,
    stamp_of,
    subject_of,
)

X = "n1g1"


def owner(history: History, uuid: str = X) -> str:
    return str(history.cluster.gpus[GpuId(uuid)].node_id)


def gpus(history: History, name: str) -> list[str]:
    return [str(uuid) for uuid in history.cluster.nodes[node(name)].gpus]


def contested() -> History:
    """n1 has its device, and n2 registers it too."""
    history = begun(nodes=2)
    assert history.say(registered("n2", "n2g1", X, incarnation=2))
    return history


def test_a_device_of_a_live_node_is_not_given_to_another_that_registers_it() -> None:
    history = contested()
    assert (owner(history), gpus(history, "n1"), gpus(history, "n2")) == ("n1", [X], ["n2g1"])
    assert history.say(registered("n2", "n2g1", X, incarnation=3))
    assert owner(history) == "n1"


def test_the_node_keeps_its_device_over_restarts_of_its_agent() -> None:
    history = contested()
    assert history.say(registered("n1", X, incarnation=2))
    assert (owner(history), gpus(history, "n1")) == ("n1", [X])


def test_an_honest_claim_is_as_it_was_once_the_other_node_is_honest_again() -> None:
    history = contested()
    assert history.say(registered("n2", "n2g1", incarnation=3))
    assert (owner(history), history.cluster.contested, gpus(history, "n2")) == ("n1", {}, ["n2g1"])


def test_a_lost_node_s_device_goes_to_the_next_that_registered_it_and_stays_there() -> None:
    history = contested()
    assert history.say(lost("n1"))
    assert (owner(history), gpus(history, "n1"), gpus(history, "n2")) == ("n2", [], ["n2g1", X])
    assert history.say(registered("n1", X, incarnation=2), returned("n1"))
    assert owner(history) == "n2"


@pytest.mark.attack
def test_a_device_that_its_node_does_not_show_goes_to_the_node_that_shows_it() -> None:
    history = contested()
    assert history.say(hidden("n1", X, incarnation=2))
    assert (owner(history), gpus(history, "n1"), gpus(history, "n2")) == ("n2", [], ["n2g1", X])
    assert history.say(registered("n2", "n2g1", X, incarnation=3))
    assert owner(history) == "n2"


def test_a_device_moves_also_when_its_new_node_registers_it_last() -> None:
    history = begun(nodes=2)
    assert history.say(hidden("n1", X, incarnation=2), registered("n2", "n2g1", X, incarnation=2))
    assert (owner(history), gpus(history, "n1"), gpus(history, "n2")) == ("n2", [], ["n2g1", X])


@pytest.mark.attack
def test_a_node_that_shows_its_device_again_has_it_back_from_one_that_lied() -> None:
    history = contested()
    assert history.say(hidden("n1", X, incarnation=2), registered("n2", "n2g1", X, incarnation=3))
    assert history.say(registered("n1", X, incarnation=3))
    assert (owner(history), gpus(history, "n1"), gpus(history, "n2")) == ("n1", [X], ["n2g1"])


def test_a_device_that_no_node_shows_stays_where_it_was() -> None:
    history = contested()
    assert history.say(hidden("n2", "n2g1", X, incarnation=3), hidden("n1", X, incarnation=2))
    assert owner(history) == "n1"


@pytest.mark.attack
def test_the_first_claim_stays_the_first_over_any_number_of_restarts() -> None:
    history = contested()
    for incarnation in range(2, BIRTHS_MAX + 10):
        assert history.say(registered("n1", X, incarnation=incarnation))
    assert history.say(registered("n2", "n2g1", X, incarnation=3))
    assert owner(history) == "n1"
    assert len(history.cluster.contested[GpuId(X)][0].births) == BIRTHS_MAX


def hidden(name: str, *uuids: str, incarnation: int) -> f.NodeRegistered:
    """A registration whose driver does not show the last of these devices."""
    return msgspec.structs.replace(
        registered(name, *uuids, incarnation=incarnation), absent=(GpuId(uuids[-1]),)
    )


def test_a_contested_device_is_shown_on_both_nodes() -> None:
    history = contested()
    one, two = (
        node_shown(history.cluster, history.cluster.nodes[node(name)]).contested
        for name in ("n1", "n2")
    )
    assert one == two == {X: ContestShown("n1", ["n2"], True)}
    assert history.say(hidden("n1", X, incarnation=2))
    one, two = (
        node_shown(history.cluster, history.cluster.nodes[node(name)]).contested
        for name in ("n1", "n2")
    )
    assert (one, two) == (
        {X: ContestShown("n2", ["n1"], False)},
        {X: ContestShown("n2", ["n1"], True)},
    )


def test_cards_exchanged_between_two_machines_are_where_they_were_put() -> None:
    history = begun(nodes=2)
    assert history.say(registered("n1", "n2g1", incarnation=2), registered("n2", X, incarnation=2))
    assert (gpus(history, "n1"), gpus(history, "n2")) == (["n2g1"], [X])
    assert history.cluster.contested == {}


def test_a_removed_node_s_device_goes_to_the_next() -> None:
    history = contested()
    assert history.say(f.NodeRemoved(node_id=node("n1")))
    assert (owner(history), gpus(history, "n2")) == ("n2", ["n2g1", X])


def test_of_three_the_next_in_order_gets_it() -> None:
    history = begun(nodes=3)
    assert history.say(
        registered("n3", "n3g1", X, incarnation=2), registered("n2", "n2g1", X, incarnation=2)
    )
    assert history.say(registered("n1", incarnation=2))
    assert (owner(history), gpus(history, "n1")) == ("n3", [])
    assert history.say(lost("n3", 2), lost("n2", 2))
    assert owner(history) == "n3"


def test_each_node_s_words_on_a_device_s_health_are_its_own() -> None:
    history = contested()
    assert history.say(faulted("n2", X))
    assert history.cluster.gpus[GpuId(X)].health == "healthy"
    assert history.say(faulted("n1", X))
    assert history.say(recovered("n2", X))
    assert history.cluster.gpus[GpuId(X)].health == "degraded"
    assert history.say(faulted("n2", X), lost("n1"))
    assert (history.cluster.gpus[GpuId(X)].reason, history.cluster.nodes[node("n2")].state) == (
        "xid",
        "degraded",
    )
    assert not history.say(recovered("n3", X))


def test_words_on_a_device_that_another_has_are_forgotten_with_the_state_directory() -> None:
    history = begun(nodes=2)
    assert history.say(
        registered("n2", "n2g1", X, incarnation=2, directory="one"), faulted("n2", X)
    )
    elsewhere = msgspec.structs.replace(
        registered("n2", "n2g1", X, incarnation=3, directory="two"), tells_health=True
    )
    assert history.say(elsewhere)
    assert [claim.health for claim in history.cluster.contested[GpuId(X)]] == ["healthy", "healthy"]


def test_a_node_brings_a_bounded_number_of_uuids_into_the_fold() -> None:
    history = begun()
    for part in range(6):
        history.say(registered("n1", *(f"x{part}-{n}" for n in range(250)), incarnation=part + 2))
    assert len(history.cluster.gpus) == UUIDS_MAX
    assert gpus(history, "n1") == []
    assert node_shown(history.cluster, history.cluster.nodes[node("n1")]).gpus_ignored == 250
    assert history.say(registered("n1", X, incarnation=9))
    assert gpus(history, "n1") == [X]
    assert node_shown(history.cluster, history.cluster.nodes[node("n1")]).gpus_ignored == 0


CROSSED: dict[str, tuple[AnyFact, AnyFact]] = {
    "a loss and another's registration": (lost("n1"), registered("n3", "n3g1", X, incarnation=2)),
    "a loss and the next registration": (lost("n1"), registered("n1", X, incarnation=2)),
    "a loss and a registration without it": (lost("n1"), registered("n2", "n2g1", incarnation=3)),
    "a loss and a registration that hides it": (lost("n1"), hidden("n1", X, incarnation=2)),
    "a registration that hides it and another's": (
        hidden("n1", X, incarnation=2),
        registered("n3", "n3g1", X, incarnation=2),
    ),
    "a loss and a word on its health": (lost("n1"), faulted("n1", X)),
    "a removal and another's registration": (
        f.NodeRemoved(node_id=node("n1")),
        registered("n3", "n3g1", X, incarnation=2),
    ),
}


@pytest.mark.parametrize("pair", CROSSED.values(), ids=CROSSED.keys())
def test_facts_that_crossed_end_in_the_same_owner(pair: tuple[AnyFact, AnyFact]) -> None:
    history = begun(nodes=3)
    assert history.say(registered("n2", "n2g1", X, incarnation=2))
    ends = [after(history.cluster, order) for order in permutations(enumerate(pair, 1))]
    assert ends[0] == ends[1]


def after(cluster: Cluster, facts: tuple[tuple[int, AnyFact], ...]) -> dict[str, object]:
    state = copy(cluster)
    for number, fact in facts:
        fold.apply(state, fact, stamp_of(subject_of(fact), cluster.seq + number, cluster.epoch))
    return picture(state)


def test_outcome_of_a_device_control_counts_only_from_its_own_node() -> None:
    history = contested()
    assert history.say(controlled("n2", "300", 0))
    assert history.say(f.GpuControlRequested(uuid=GpuId(X), control="power", value="300"))
    wish = history.cluster.gpus[GpuId(X)].controls["power"].request
    assert history.say(controlled("n1", "300", wish), controlled("n2", "250", wish, "failed"))
    assert history.say(lost("n1"))
    power = history.cluster.gpus[GpuId(X)].controls["power"]
    assert (power.value, power.outcome, power.in_force) == ("300", "failed", "300")
    assert history.say(f.GpuControlRequested(uuid=GpuId(X), control="clocks", value="1000"))
    assert history.say(f.GpuControlRequested(uuid=GpuId(X), control="power", value="200"))
    assert history.say(registered("n2", incarnation=3))
    power = history.cluster.gpus[GpuId(X)].controls["power"]
    assert (owner(history), power.value, power.outcome, power.in_force) == ("n1", "200", "", "300")


def test_a_word_on_a_wish_that_another_replaced_is_not_kept() -> None:
    history = contested()
    assert history.say(controlled("n2", "300", 7, "failed"))
    assert [claim.told for claim in history.cluster.contested[GpuId(X)]] == [{}, {}]


def controlled(name: str, value: str, request: int, outcome: str = "done") -> f.GpuControlled:
    return f.GpuControlled(
        node_id=node(name),
        uuid=GpuId(X),
        control="power",
        value=value,
        request=request,
        outcome=outcome,
    )
