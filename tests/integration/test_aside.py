"""A question is answered by a fork of the process: what it changes stays in the child, and the loop
goes on meanwhile.
"""

import asyncio
import os
import time
from pathlib import Path

import pytest

from libs.common.model import JobId
from libs.common.transport import snapshot
from services.scheduler.explain.explain import explain
from services.scheduler.explain.trial import copied
from services.scheduler.questions.aside import BUG, WAITING_MAX, Aside, forked
from tests.given import given, member, placed, registered, waiting


def none(text: str) -> bytes:
    return f"none: {text}".encode()


async def test_changes_in_the_forked_child_do_not_reach_the_scheduler() -> None:
    state = given(registered("a"))
    before = snapshot.encode(state.cluster)

    def question() -> bytes:
        state.cluster.jobs.clear()
        state.cluster.nodes.clear()
        return b"%d nodes left" % len(state.cluster.nodes)

    assert await Aside(5.0).answer(question, none) == b"0 nodes left"
    assert snapshot.encode(state.cluster) == before


async def test_a_proof_by_forks_is_the_proof_by_copies() -> None:
    history = (
        registered("a"),
        waiting("i", gpus=3),
        placed("i", member("a", 0, 1, 2)),
        waiting("first", gpus=4),
        waiting("j"),
    )
    job = JobId("j")
    said = await Aside(20.0).answer(
        lambda: repr(explain(given(*history), job, forked)).encode(), none
    )
    found = explain(given(*history), job, copied)
    assert said.decode() == repr(found) and len(found["changes"]) > 1


async def test_the_loop_goes_on_while_a_child_works_and_ends_it_at_its_deadline() -> None:
    asking = asyncio.create_task(Aside(0.3).answer(lambda: time.sleep(60) or b"", none))
    turns = 0
    while not asking.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert turns > 1 and (await asking).startswith(b"none: this took longer than")


async def test_a_child_that_fails_gives_no_answer_and_does_no_harm() -> None:
    aside = Aside(5.0)

    def question() -> bytes:
        raise ValueError("a bug")

    assert (await aside.answer(question, none)).startswith(b"none: the scheduler failed")
    assert await aside.answer(lambda: b"fine", none) == b"fine"


async def test_a_trial_that_fails_is_not_taken_for_a_no() -> None:
    def trial(_: object) -> bool:
        raise ValueError("a bug")

    assert (await Aside(5.0).answer(lambda: b"%d" % forked(given(), trial), none)).startswith(
        b"none: the scheduler failed"
    )
    assert BUG not in (0, 1)


async def test_only_so_many_questions_wait() -> None:
    aside = Aside(5.0)
    told = await asyncio.gather(
        *(aside.answer(lambda: b"yes", none) for _ in range(WAITING_MAX + 1))
    )
    assert told == [b"yes"] * WAITING_MAX + [
        none(f"{WAITING_MAX} such questions wait already: ask again in a moment")
    ]


async def test_a_question_that_is_given_up_leaves_no_child_behind(tmp_path: Path) -> None:
    note = tmp_path / "pid"

    def question() -> bytes:
        note.write_text(str(os.getpid()))
        time.sleep(60)
        return b""

    asking = asyncio.create_task(Aside(60.0).answer(question, none))
    async with asyncio.timeout(10):
        while not note.exists() or not note.read_text():
            await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.wait((asking,))
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)
