"""Slurm's states, from Muster's."""

import pytest

from libs.cli.slurm import states
from libs.cli.slurm.states import end_word, muster_states, state_of, states_named
from libs.common import reasons
from libs.common.errors import Refused
from libs.common.life import job_life


@pytest.mark.parametrize(
    ("job", "code"),
    [
        ({"state": "pending"}, "PD"),
        ({"state": "queued"}, "PD"),
        ({"state": "begun"}, "R"),
        ({"state": "placed"}, "CF"),
        ({"state": "running"}, "R"),
        ({"state": "releasing"}, "CG"),
        ({"state": "completed"}, "CD"),
        ({"state": "completed", "reason": reasons.EXPIRED}, "TO"),
        ({"state": "cancelled"}, "CA"),
        ({"state": "rejected"}, "F"),
        ({"state": "failed", "reason": "exited"}, "F"),
        ({"state": "failed", "reason": reasons.TIME_LIMIT}, "TO"),
        ({"state": "failed", "reason": reasons.NODE_LOST}, "NF"),
        ({"state": "failed", "reason": reasons.PREEMPTED}, "PR"),
        (
            {"state": "failed", "members": [{"reason": "x"}, {"reason": reasons.OUT_OF_MEMORY}]},
            "OOM",
        ),
    ],
)
def test_each_job_has_a_state_of_slurm(job: dict[str, object], code: str) -> None:
    assert state_of(job).code == code


def test_every_state_of_a_job_is_known() -> None:
    for state in (*job_life.LIVE, *job_life.ENDED):
        assert state_of({"state": state}) in states.STATES


def test_states_are_named_by_code_or_name() -> None:
    assert states_named("pd,Running") == (states.PENDING, states.RUNNING)
    assert states_named("ALL") == states.STATES
    with pytest.raises(Refused, match="invalid job state 'XY': use PENDING "):
        states_named("XY")


def test_a_query_asks_for_each_state_that_a_job_may_have() -> None:
    assert muster_states((states.PENDING,)) == ("pending", "queued")
    assert muster_states((states.TIMEOUT,)) == ("failed", "completed")
    assert set(muster_states(states.STATES)) == {*job_life.LIVE, *job_life.ENDED}


def test_an_ended_job_has_slurms_word_for_its_end() -> None:
    assert end_word({"state": "failed", "reason": reasons.TIME_LIMIT}) == "TimeLimit"
    assert end_word({"state": "failed"}) == "NonZeroExitCode"
    assert end_word({"state": "completed"}) == "None"
