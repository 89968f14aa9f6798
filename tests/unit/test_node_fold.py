"""Changes of the state by each fact about a node, and what must not change.

`History.say` checks that an ignored fact changes nothing.
"""

import pytest
from msgspec.structs import replace

from libs.common import facts as f
from libs.common.model import AttemptRef, GpuId
from libs.common.state.cluster import GpuView, Node
from services.api_gateway.views.nodes import node_shown
from tests.history import (
    History,
    begun,
    faulted,
    finished,
    lost,
    member,
    node,
    placed,
    recovered,
    ref,
    registered,
    released,
    returned,
    started,
)


def of(history: History, name: str = "n1") -> Node:
    return history.cluster.nodes[node(name)]


def device(history: History, uuid: str) -> GpuView:
    return history.cluster.gpus[GpuId(uuid)]


def with_job(*names: str) -> History:
    """Job `j` runs on each of these nodes."""
    history = begun(nodes=2, gpus=2)
    history.queue("j", nodes=len(names))
    members = (member(name, f"{name}g1", rank=rank) for rank, name in enumerate(names))
    assert history.say(placed("j", *members), *(started("j", name) for name in names))
    return history


def test_a_registration_makes_a_node_with_its_devices() -> None:
    history = begun(nodes=1, gpus=2)
    assert (of(history).state, of(history).incarnation, of(history).gpus) == (
        "healthy",
        1,
        ["n1g1", "n1g2"],
    )
    assert device(history, "n1g2").gpu.index == 1


def test_each_registration_says_which_drivers_a_node_has_now() -> None:
    history = begun()
    assert node_shown(history.cluster, of(history)).drivers == {}
    assert history.say(
        replace(
            registered("n1", "n1g1", incarnation=2), drivers={"nvidia": "580.65.06", "cuda": "13.0"}
        )
    )
    assert node_shown(history.cluster, of(history)).drivers == {
        "nvidia": "580.65.06",
        "cuda": "13.0",
    }
    assert history.say(registered("n1", "n1g1", incarnation=3))
    assert node_shown(history.cluster, of(history)).drivers == {}


@pytest.mark.parametrize("incarnation", [0, 1])
def test_an_incarnation_that_is_not_newer_is_ignored(incarnation: int) -> None:
    assert not begun().say(registered("n1", "other", incarnation=incarnation))


def test_a_device_that_is_not_reported_any_more_is_known_and_not_present() -> None:
    history = begun(gpus=2)
    assert history.say(registered("n1", "n1g2", incarnation=2))
    assert (device(history, "n1g1").present, of(history).gpus) == (False, ["n1g2"])
    assert history.say(registered("n1", "n1g1", "n1g2", incarnation=3))
    assert device(history, "n1g1").present


def test_a_device_that_moved_is_its_new_node_s() -> None:
    history = begun(nodes=2)
    assert history.say(registered("n1", incarnation=2))
    assert history.say(registered("n2", "n2g1", "n1g1", incarnation=2))
    assert (of(history, "n1").gpus, of(history, "n2").gpus) == ([], ["n2g1", "n1g1"])
    assert not history.say(faulted("n1", "n1g1"))
    assert history.say(faulted("n2", "n1g1"))


def test_a_node_is_well_again_when_its_hurt_device_has_moved_away() -> None:
    history = begun(nodes=2)
    assert history.say(faulted("n1", "n1g1"))
    assert history.say(registered("n1", incarnation=2))
    assert history.say(registered("n2", "n2g1", "n1g1", incarnation=2))
    assert (of(history, "n1").state, of(history, "n2").state) == ("healthy", "degraded")


def test_a_registration_without_an_attempt_loses_its_member() -> None:
    history = with_job("n1")
    assert history.say(registered("n1", "n1g1", incarnation=2))
    assert (history.members("j"), history.holds("n1g1")) == ({"n1": "lost"}, {})


def test_a_registration_that_accounts_for_an_attempt_keeps_its_member() -> None:
    history = with_job("n1")
    assert history.say(registered("n1", "n1g1", incarnation=2, attempts=(ref("j"),)))
    assert (history.members("j"), history.holds("n1g1")) == ({"n1": "started"}, {"j.1": 100})


def test_a_registration_without_an_attempt_that_was_over_is_no_loss() -> None:
    history = with_job("n1")
    assert history.say(
        finished("j", "n1"), released("j", "n1"), registered("n1", "n1g1", incarnation=2)
    )
    assert history.members("j") == {"n1": "released"}


def test_a_lost_node_loses_its_members_and_no_others() -> None:
    history = with_job("n1", "n2")
    assert history.say(lost("n1"))
    assert history.members("j") == {"n1": "lost", "n2": "started"}
    assert (of(history, "n1").state, of(history, "n2").state, history.job("j").state) == (
        "unreachable",
        "healthy",
        "running",
    )


@pytest.mark.parametrize("incarnation", [0, 2])
def test_the_loss_of_an_incarnation_that_is_not_there_is_ignored(incarnation: int) -> None:
    assert not begun().say(lost("n1", incarnation=incarnation))
    assert not begun().say(lost("nowhere"))


def test_a_node_is_lost_once() -> None:
    history = begun()
    assert history.say(lost("n1"))
    assert not history.say(lost("n1"))


def test_lost_node_that_registers_again_stays_unreachable_until_it_returns() -> None:
    history = begun()
    assert history.say(lost("n1"), registered("n1", "n1g1", incarnation=2))
    assert of(history).state == "unreachable"
    assert history.say(returned("n1"))
    assert of(history).state == "healthy"


def test_only_an_incarnation_after_the_loss_returns() -> None:
    history = begun()
    assert history.say(lost("n1"))
    assert not history.say(returned("n1", incarnation=1))
    assert not history.say(returned("n1", incarnation=2))
    assert not history.say(returned("nowhere"))


def test_return_of_a_node_that_was_not_lost_changes_nothing() -> None:
    history = begun()
    history.say(returned("n1", incarnation=1))
    assert of(history).state == "healthy"


def test_loss_that_crossed_a_registration_affects_the_old_incarnation_only() -> None:
    history = begun()
    assert history.say(
        registered("n1", "n1g1", incarnation=2), lost("n1", incarnation=1), returned("n1")
    )
    assert (of(history).state, of(history).lost, of(history).returned) == ("healthy", 1, 2)
    assert history.say(registered("n1", "n1g1", incarnation=3))
    assert of(history).state == "healthy"


def test_a_node_can_be_lost_again() -> None:
    history = begun()
    assert history.say(
        lost("n1"),
        registered("n1", "n1g1", incarnation=2),
        returned("n1"),
        lost("n1", incarnation=2),
    )
    assert of(history).state == "unreachable"


def test_a_hurt_device_degrades_its_node_and_a_recovered_one_heals_it() -> None:
    history = begun(gpus=2)
    assert history.say(faulted("n1", "n1g1"), faulted("n1", "n1g2", "offline"))
    assert (of(history).state, device(history, "n1g1").health, device(history, "n1g1").reason) == (
        "degraded",
        "degraded",
        "xid",
    )
    assert history.say(recovered("n1", "n1g1"))
    assert of(history).state == "degraded"
    assert history.say(recovered("n1", "n1g2"))
    assert (of(history).state, device(history, "n1g2").health, device(history, "n1g2").reason) == (
        "healthy",
        "healthy",
        "",
    )


def test_a_hurt_device_takes_no_promise_back() -> None:
    history = with_job("n1")
    assert history.say(faulted("n1", "n1g1", "offline"))
    assert (history.holds("n1g1"), history.members("j")) == ({"j.1": 100}, {"n1": "started"})


@pytest.mark.parametrize(
    "fact",
    [
        recovered("n1", "n1g1"),
        recovered("n1", "none"),
        faulted("n1", "none"),
        faulted("n1", "n1g1", "sad"),
        faulted("n1", "n2g1"),
    ],
)
def test_unknown_events_and_devices_are_ignored(
    fact: f.GpuFaulted | f.GpuRecovered,
) -> None:
    assert not begun(nodes=2).say(fact)


def test_a_device_stays_hurt_over_its_node_s_new_incarnation() -> None:
    history = begun()
    assert history.say(faulted("n1", "n1g1"), registered("n1", "n1g1", incarnation=2))
    assert (of(history).state, device(history, "n1g1").health) == ("degraded", "degraded")


def test_recovery_on_a_lost_node_counts_when_the_node_returns() -> None:
    history = begun()
    assert history.say(
        faulted("n1", "n1g1"),
        lost("n1"),
        registered("n1", "n1g1", incarnation=2),
        recovered("n1", "n1g1"),
    )
    assert of(history).state == "unreachable"
    assert history.say(returned("n1"))
    assert of(history).state == "healthy"


def test_release_ends_the_accounting_even_of_a_closed_attempt() -> None:
    history = with_job("n1")
    assert history.say(
        lost("n1"), f.JobClosed(job_id=history.job("j").job_id, attempt=1, outcome="failed")
    )
    assert history.say(registered("n1", "n1g1", incarnation=2, attempts=(ref("j"),)))
    assert list(of(history).accounted) == ["j.1"]
    assert history.say(released("j", "n1"))
    assert of(history).accounted == {}
    assert not history.say(released("j", "n1"))


# A state directory that is not the last one's.


def replaced(*attempts: AttemptRef, directory: str = "other") -> History:
    """Job `j` runs on n1 of the directory `one`, and an agent of another one registered under that
    name.
    """
    history = begun(nodes=1, gpus=2)
    assert history.say(registered("n1", "n1g1", "n1g2", incarnation=2, directory="one"))
    history.queue("j")
    assert history.say(placed("j", member("n1", "n1g1", incarnation=2)), started("j", "n1"))
    assert history.say(
        registered("n1", "n1g1", "n1g2", incarnation=3, attempts=attempts, directory=directory)
    )
    return history


def j_on_n1(history: History) -> str:
    return history.job("j").members[node("n1")].state


def test_agent_with_an_empty_directory_frees_nothing_and_gets_no_work() -> None:
    history = replaced()
    assert (of(history).state, of(history).replaced, j_on_n1(history)) == (
        "unreachable",
        [2],
        "started",
    )
    assert device(history, "n1g1").held == 100
    assert history.say(lost("n1", incarnation=2))
    assert (
        of(history).state,
        of(history).replaced,
        j_on_n1(history),
        device(history, "n1g1").held,
    ) == ("unreachable", [], "lost", 0)
    assert history.say(returned("n1", incarnation=3))
    assert of(history).state == "healthy"


@pytest.mark.parametrize("directory", ["one", ""])
def test_agent_with_the_same_directory_frees_attempts_that_it_does_not_name(
    directory: str,
) -> None:
    history = replaced(directory=directory)
    assert (of(history).state, of(history).replaced, j_on_n1(history)) == ("healthy", [], "lost")


def test_a_directory_that_replaces_an_unnamed_one_goes_on() -> None:
    history = with_job("n1")
    assert history.say(registered("n1", "n1g1", "n1g2", incarnation=2, directory="one"))
    assert (of(history).state, j_on_n1(history)) == ("healthy", "lost")


def test_report_on_an_attempt_that_the_agent_cannot_know_is_ignored() -> None:
    history = replaced()
    for fact in (
        finished("j", "n1"),
        released("j", "n1"),
        f.JobRefused(job_id=ref("j").job_id, attempt=1, node_id=node("n1"), reason=""),
    ):
        assert not history.say(fact)
    assert j_on_n1(history) == "started"


def test_a_replaced_incarnation_that_was_lost_before_holds_nothing_up() -> None:
    history = begun(nodes=1)
    assert history.say(
        registered("n1", "n1g1", incarnation=2, directory="one"), lost("n1", incarnation=2)
    )
    assert history.say(registered("n1", "n1g1", incarnation=3, directory="other"))
    assert of(history).replaced == []
    assert history.say(returned("n1", incarnation=3))
    assert of(history).state == "healthy"


def test_a_return_that_crosses_a_replacement_leaves_the_node_unreachable() -> None:
    history = begun(nodes=1)
    assert history.say(
        registered("n1", "n1g1", incarnation=2, directory="one"), lost("n1", incarnation=1)
    )
    assert history.say(
        registered("n1", "n1g1", incarnation=3, directory="other"), returned("n1", incarnation=2)
    )
    assert (of(history).state, of(history).replaced) == ("unreachable", [2])


def test_placement_survives_a_replaced_agent_but_not_a_plain_restart() -> None:
    for directory, state in (("other", "placed"), ("one", "lost")):
        history = begun(nodes=1)
        assert history.say(registered("n1", "n1g1", incarnation=2, directory="one"))
        history.queue("j")
        assert history.say(registered("n1", "n1g1", incarnation=3, directory=directory))
        assert history.say(registered("n1", "n1g1", incarnation=4, directory="third"))
        assert history.say(placed("j", member("n1", "n1g1", incarnation=2)))
        assert j_on_n1(history) == state


def test_returning_first_directory_accounts_for_its_attempts_until_lost() -> None:
    history = replaced()
    assert history.say(
        registered("n1", "n1g1", "n1g2", incarnation=4, attempts=(ref("j"),), directory="one")
    )
    assert (of(history).replaced, j_on_n1(history)) == ([2, 3], "started")
    assert history.say(finished("j", "n1"))
    assert history.say(lost("n1", incarnation=3))
    assert (of(history).replaced, j_on_n1(history)) == ([], "lost")
