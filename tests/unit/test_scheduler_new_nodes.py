"""`whatif` with nodes that are not there: as if they had joined, and what stands before the job had
been placed first.
"""

import pytest

from libs.common.facts import JobPlaced
from libs.common.messages import NewNodes
from libs.common.model import TenantId
from services.scheduler.decide.decide import decide
from services.scheduler.explain import trial
from services.scheduler.questions.what_if import WhatIfAsk, what_if
from services.scheduler.state.state import State
from tests.given import given, member, placed, registered, spec, waiting

FULL = (registered("a"), waiting("i", gpus=4), placed("i", member("a", 0, 1, 2, 3)))


def asked(state: State, add: NewNodes, **request: int) -> dict[str, object]:
    return what_if(state, WhatIfAsk(spec(**request), TenantId("default"), add))


ONE = NewNodes(1, 4, "H100")


def test_a_job_that_waits_for_devices_would_start_on_the_new_node() -> None:
    found = asked(given(*FULL), ONE, gpus=4)
    assert found["would_start"]
    assert found["answer"] == (
        "with 1 node of 4 H100 GPUs more, and 0 jobs before it placed: it would start now, on new_1"
    )


def test_earlier_waiting_jobs_take_the_new_devices_first() -> None:
    before = waiting("first", gpus=4)
    found = asked(given(*FULL, before), ONE, gpus=4)
    assert not found["would_start"] and "and 1 job before it placed: " in str(found["answer"])
    assert asked(given(*FULL, before), NewNodes(2, 4), gpus=4)["would_start"]


def test_a_job_of_higher_priority_does_not_wait_for_those_behind_it() -> None:
    assert asked(given(*FULL, waiting("first", gpus=4)), ONE, gpus=4, priority=90)["would_start"]


def test_nodes_that_do_not_help_leave_it_waiting_and_it_is_told_why() -> None:
    found = asked(given(*FULL), NewNodes(3, 8, "H100"), gpus=16)
    assert not found["would_start"] and found["blockers"] and found["remedy"]


def test_so_many_decisions_are_taken_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "DECISIONS_MAX", 3)
    found = asked(given(*FULL, *(waiting(name, gpus=1) for name in ("x", "y", "z"))), ONE, gpus=1)
    assert "and 2 jobs before it placed: " in str(found["answer"])


def test_a_model_that_no_node_has_is_not_guessed() -> None:
    found = asked(given(*FULL), NewNodes(1, 8, "B300"), gpus=1)
    assert not found["would_start"] and "there are: Simulated H100" in str(found["answer"])


def test_the_rules_do_what_was_said_once_such_a_node_joins() -> None:
    (fact,) = decide(given(*FULL, registered("new"), waiting("j", gpus=2)), 0)
    assert asked(given(*FULL), ONE, gpus=2)["would_start"]
    assert isinstance(fact, JobPlaced) and [member.node_id for member in fact.members] == ["new"]
