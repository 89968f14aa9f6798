"""Fold of jobs that may continue without a lease, and of an operator's verdict on their node."""

from libs.common.state.cluster import Node, owes_nothing
from tests.history import (
    History,
    begun,
    buried,
    declared_dead,
    finished,
    lost,
    member,
    node,
    placed,
    ref,
    registered,
    released,
    returned,
    started,
)


def of(history: History, name: str = "n1") -> Node:
    return history.cluster.nodes[node(name)]


def going_on() -> History:
    history = begun()
    history.queue("j", on_control_loss="continue")
    assert history.say(placed("j", member("n1", "n1g1")), started("j", "n1"))
    return history


def test_silent_node_keeps_jobs_that_ignore_the_lease() -> None:
    history = going_on()
    assert history.say(lost("n1"))
    assert (of(history).state, history.members("j"), history.holds("n1g1")) == (
        "unreachable",
        {"n1": "started"},
        {"j.1": 100},
    )
    assert history.say(finished("j", "n1"), released("j", "n1"))
    assert (history.job("j").state, history.members("j"), history.holds("n1g1")) == (
        "releasing",
        {"n1": "released"},
        {},
    )


def test_returning_node_keeps_the_job_only_if_it_accounts_for_it() -> None:
    history = going_on()
    assert history.say(
        lost("n1"), registered("n1", "n1g1", incarnation=2, attempts=(ref("j"),)), returned("n1", 2)
    )
    assert (history.members("j"), history.holds("n1g1")) == ({"n1": "started"}, {"j.1": 100})
    assert history.say(lost("n1", 2), registered("n1", "n1g1", incarnation=3))
    assert (history.members("j"), history.holds("n1g1")) == ({"n1": "lost"}, {})


def test_declared_dead_node_loses_its_jobs_with_the_schedulers_loss() -> None:
    history = going_on()
    assert history.say(lost("n1"), declared_dead("n1"))
    assert of(history).declared_dead and history.members("j") == {"n1": "started"}
    assert history.say(buried("n1"))
    assert not of(history).declared_dead and (history.members("j"), history.holds("n1g1")) == (
        {"n1": "lost"},
        {},
    )
    assert not history.say(buried("n1"))


def test_a_death_declaration_is_about_one_silence_only() -> None:
    history = going_on()
    assert not history.say(declared_dead("n1"))
    assert history.say(lost("n1"))
    assert not history.say(declared_dead("n1", incarnation=2))
    assert history.say(
        registered("n1", "n1g1", incarnation=2, attempts=(ref("j"),)),
        declared_dead("n1", incarnation=2),
    )
    assert of(history).declared_dead
    assert history.say(returned("n1", 2)) and not of(history).declared_dead
    assert history.say(lost("n1", 2)) and not of(history).declared_dead
    assert not history.say(declared_dead("n1", incarnation=2))
    assert history.say(declared_dead("n1", incarnation=2, lost=2)) and of(history).declared_dead


def test_a_death_declaration_is_ignored_after_a_new_registration() -> None:
    history = going_on()
    assert history.say(
        lost("n1"),
        declared_dead("n1"),
        registered("n1", "n1g1", incarnation=2, attempts=(ref("j"),)),
    )
    assert not of(history).declared_dead


def test_only_an_operator_can_end_a_job_of_a_replaced_agent() -> None:
    history = begun()
    assert history.say(registered("n1", "n1g1", incarnation=2, directory="one"))
    history.queue("j", on_control_loss="continue")
    assert history.say(placed("j", member("n1", "n1g1", incarnation=2)), started("j", "n1"))
    assert history.say(registered("n1", "n1g1", incarnation=3, directory="other"), lost("n1", 2))
    assert not history.say(finished("j", "n1"))
    assert (history.members("j"), history.holds("n1g1")) == ({"n1": "started"}, {"j.1": 100})
    assert not owes_nothing(history.cluster, of(history))
    assert history.say(declared_dead("n1", incarnation=3, lost=2), buried("n1", 3))
    assert (history.members("j"), history.holds("n1g1")) == ({"n1": "lost"}, {})
    assert owes_nothing(history.cluster, of(history))


def test_its_own_state_directory_that_comes_back_goes_on_with_it() -> None:
    history = going_on()
    assert history.say(
        registered("n1", "n1g1", incarnation=2, attempts=(ref("j"),), directory="one")
    )
    assert history.say(registered("n1", "n1g1", incarnation=3, directory="other"), lost("n1", 2))
    assert history.say(
        registered("n1", "n1g1", incarnation=4, attempts=(ref("j"),), directory="one"),
        lost("n1", 3),
    )
    assert history.say(finished("j", "n1"), released("j", "n1"))
    assert history.members("j") == {"n1": "released"}
