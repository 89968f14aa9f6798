"""A deciding process after its replay (memory), and with facts that no commit can hold."""

import gc
from collections.abc import Sequence

import pytest

from libs.common import facts as f
from libs.common import subjects
from libs.common.facts import AnyFact, Commit
from libs.common.process.clock import SystemClock
from libs.common.process.service import YOUNG_MAX, Shell, Silent, Smaller, freeze_collector
from libs.common.transport.log_memory import MemoryLog, MemoryStream
from libs.common.transport.writer import Writer
from tests.attack.test_large_commits import gang, preemptions


def test_state_of_a_replay_is_excluded_from_garbage_collection() -> None:
    thresholds = gc.get_threshold()
    replayed = [[number] for number in range(1_000)]
    try:
        freeze_collector()
        assert gc.get_freeze_count() > len(replayed) and gc.get_threshold()[0] == YOUNG_MAX
        assert not any(each is replayed for each in gc.get_objects())
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)


class Fold:
    """A state that only notes what was applied."""

    seq = 0

    def __init__(self) -> None:
        self.applied: list[Sequence[AnyFact]] = []

    def apply_entry(self, seq: int, subject: str, commit: Commit) -> None:
        raise AssertionError

    def apply_own(self, facts: Sequence[AnyFact], at_ns: int) -> None:
        self.applied.append(facts)

    def skip_own(self, seq: int, subject: str, commit: Commit) -> None:
        raise AssertionError


def deciding(state: Fold, decisions: list[list[AnyFact]], smaller: Smaller) -> Shell:
    log = MemoryLog(MemoryStream())
    writer = Writer(log, SystemClock(), subjects.SCHEDULER, lambda: 0)
    return Shell(
        log=log,
        writer=writer,
        state=state,
        propose=lambda _: decisions.pop(0) if decisions else [],
        voice=Silent(),
        smaller=smaller,
    )


async def test_facts_that_fit_into_no_commit_are_never_applied() -> None:
    state, large, instead, later = Fold(), [gang(1_024, 64)], [preemptions(1)[0]], preemptions(2)
    deciding(state, [large, later], lambda _: instead).decide()
    assert state.applied == [instead, later]


async def test_a_decision_without_anything_smaller_is_dropped() -> None:
    state, later = Fold(), preemptions(2)
    shell = deciding(state, [[gang(1_024, 64)], later], lambda _: [])
    shell.decide()
    assert state.applied == []
    shell.decide()
    assert state.applied == [later]


async def test_smaller_facts_that_do_not_fit_either_are_not_recorded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    state, later = Fold(), preemptions(2)
    shell = deciding(state, [[gang(1_024, 64)], [gang(1_024, 64)], later], lambda facts: facts)
    shell.decide()
    shell.decide()
    assert state.applied == []
    assert [
        record.getMessage()
        for record in caplog.records
        if "do not fit into a commit either" in record.getMessage()
    ] == [
        f"1 facts beginning with job.placed of {f.size_of(gang(1_024, 64))} bytes in place "
        "of a larger commit do not fit into a commit either and are not recorded: use shorter names"
    ]
    shell.decide()
    assert state.applied == [later]
