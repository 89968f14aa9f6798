"""If an agent with another state directory replaces one without its lease watchdog, its jobs stay.

The end of their lease proves nothing then, and the new agent does not know them.
"""

import copy

import pytest
from msgspec.structs import replace

from libs.common import facts as f
from libs.common import reasons
from libs.common.life import node_life
from libs.common.state.cluster import owes_nothing, silent_nodes
from tests.history import buried, lost, node, ref, registered
from tests.unit.test_node_fold import of, with_job


@pytest.mark.parametrize("order", ["lost first", "replaced first"])
def test_an_agent_that_replaces_an_unguarded_one_proves_no_end_of_its_jobs(order: str) -> None:
    history = with_job("n1")
    own = registered("n1", "n1g1", incarnation=2, attempts=(ref("j"),), directory="first")
    missing = f.WatchdogChanged(node_id=node("n1"), incarnation=2, missing="it ended")
    assert history.say(own, missing)
    elsewhere = registered("n1", "n1g1", incarnation=3, directory="other")
    loss = lost("n1", incarnation=2)
    if order == "lost first":
        assert history.say(replace(loss, reason=node_life.UNGUARDED), elsewhere)
    else:
        assert history.say(elsewhere, replace(loss, reason=reasons.REPLACED))
    assert history.members("j") == {"n1": "started"}
    assert silent_nodes(history.cluster, history.job("j")) == ["n1"]
    assert not owes_nothing(history.cluster, of(history))
    assert history.say(buried("n1", incarnation=3))
    assert history.members("j") == {"n1": "lost"}


LOSSES = ("silent", "replaced", "declared_dead")


@pytest.mark.parametrize("reason", LOSSES)
def test_a_loss_and_a_registration_that_replaces_an_unguarded_agent_commute(reason: str) -> None:
    """The scheduler's loss is folded ahead of the log, and may cross what the node writes."""
    missing = f.WatchdogChanged(node_id=node("n1"), incarnation=2, missing="it ended", armed_ms=5)
    second = registered("n1", "n1g1", incarnation=3, directory="second")
    third = registered("n1", "n1g1", incarnation=4, directory="third")
    missing_too = f.WatchdogChanged(node_id=node("n1"), incarnation=3, missing="it ended")
    first = with_job("n1")
    assert first.say(
        registered("n1", "n1g1", incarnation=2, attempts=(ref("j"),), directory="first")
    )
    other = copy.deepcopy(first)
    loss = f.NodeLost(node_id=node("n1"), incarnation=2, reason=reason)
    if reason == "replaced":
        assert first.say(second) and other.say(second)
        crossing = (missing_too, third)
    else:
        crossing = (missing, second)
    assert first.say(loss)
    assert first.say(*crossing)
    assert other.say(*crossing)
    assert other.say(loss)
    assert first.members("j") == other.members("j") == {"n1": "lost"}
    assert (of(first).ended, of(first).unproved) == (of(other).ended, of(other).unproved)
