"""Slurm's reason words, from a job's row and from the scheduler's explanation."""

import ast
from pathlib import Path

import pytest

from libs.cli.slurm.reasons import (
    AWAY,
    BLOCKERS,
    NEVER_HELD,
    NOT_BEGUN,
    POOLS,
    TRIED_AGAIN,
    WAITS_FOR_ELEMENTS,
    first_of_each_kind,
    needing_own_answers,
    word_of_answer,
    word_of_job,
    words_of,
)
from libs.common.life import job_life

EXPLAIN = Path("services/scheduler/explain")


@pytest.mark.parametrize(
    ("job", "word"),
    [
        ({"state": "pending"}, "None"),
        ({"state": "queued", "after": ["ja"]}, "Dependency"),
        ({"state": "queued", "held": True, "waits_for": "its user to release it"}, "JobHeldUser"),
        (
            {"state": "queued", "held": True, "user": "a", "waits_for": "a to release it"},
            "JobHeldUser",
        ),
        (
            {"state": "queued", "held": True, "user": "a", "waits_for": "op to release it"},
            "JobHeldAdmin",
        ),
        ({"state": "queued", "reserved": ["node-1"]}, "Resources"),
        ({"state": "queued", "waits_for": WAITS_FOR_ELEMENTS}, "JobArrayTaskLimit"),
        ({"state": "queued", "waits_for": "the scheduler to place it"}, ""),
    ],
)
def test_the_row_tells_the_reason_where_it_can(job: dict[str, object], word: str) -> None:
    assert word_of_job(job) == word


def answer(text: str, *blockers: str) -> dict[str, object]:
    return {"answer": text, "blockers": [{"what": what} for what in blockers]}


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (
            answer("it needs 1 node with 4 GPUs", "GPUs in use: needs 4, at most 2 free"),
            "Resources",
        ),
        (answer("it would fit, but large is before it", "queue order"), "Priority"),
        (answer("it begins after train", "dependency"), "Dependency"),
        (answer("its user holds it", "held"), "JobHeldUser"),
        (
            answer("tenant a holds 6 of at most 8 GPUs", "tenant limit", "GPUs in use"),
            "AssocGrpGRES",
        ),
        (
            answer("tenant a has 1 MiB of at most 2 MiB of memory pools", "tenant limit"),
            "AssocGrpMemLimit",
        ),
        (answer("tenant a has used up its budget", "tenant budget"), "AssocGrpGRESMinutes"),
        (
            answer("this cluster could never hold it: 9 nodes", "node unreachable"),
            "ReqNodeNotAvail",
        ),
        (
            answer("this cluster could never hold it: 9 nodes", "fewer than 9 GPUs"),
            "BadConstraints",
        ),
        (answer("its reservation night has not begun"), "Reservation"),
        (answer("node-1 refused it: no", "refused by its nodes"), "BeginTime"),
        (answer("it lost its place: it is tried again in a second"), "BeginTime"),
        (answer("4 of its elements have not ended", "array limit"), "JobArrayTaskLimit"),
        (answer("it waits"), "Resources"),
    ],
)
def test_the_explanation_tells_the_reason(found: dict[str, object], word: str) -> None:
    assert word_of_answer(found) == word


def texts() -> str:
    """All literal texts of the scheduler's explanations."""
    return "\n".join(
        node.value
        for path in EXPLAIN.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def blockers() -> set[str]:
    """The words of the blockers that are not about nodes."""
    return {
        call.args[0].value
        for path in EXPLAIN.glob("reason.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "blocker"
        and isinstance(call.args[0], ast.Constant)
    }


def test_every_blocker_of_the_scheduler_has_a_word() -> None:
    known = {start for start, _ in BLOCKERS} | {"nodes not together as required"}
    assert blockers() - known == set()


def test_every_word_that_decides_is_one_that_the_scheduler_writes() -> None:
    written = texts()
    for part in (
        NEVER_HELD,
        NOT_BEGUN,
        POOLS,
        TRIED_AGAIN,
        *(start for start, _ in BLOCKERS),
        *AWAY,
    ):
        assert part in written, part
    assert job_life.WAITS_FOR[job_life.BEGUN] == WAITS_FOR_ELEMENTS


def waiting(job_id: str, gpus: int = 1) -> dict[str, object]:
    return {"id": job_id, "gpus": gpus, "tenant": "a"}


def test_one_job_of_each_kind_is_explained() -> None:
    jobs = [waiting("ja"), waiting("jb"), waiting("jc", 2)]
    assert [job["id"] for job in first_of_each_kind(jobs)] == ["ja", "jc"]


def test_jobs_of_one_kind_share_a_reason_that_is_about_all_of_them() -> None:
    jobs = [waiting("ja"), waiting("jb"), waiting("jc", 2), waiting("jd", 2), waiting("je", 3)]
    answers = {"ja": answer("it needs more"), "jc": answer("a limit", "tenant limit")}
    assert words_of(jobs, answers) == {
        "ja": "Resources",
        "jb": "Priority",
        "jc": "AssocGrpGRES",
        "jd": "AssocGrpGRES",
        "je": "Priority",
    }
    assert needing_own_answers(jobs, answers) == []


def test_a_reason_that_is_about_one_job_is_asked_for_each() -> None:
    jobs = [waiting("ja"), waiting("jb")]
    answers = {"ja": answer("this cluster could never hold it", "fewer than 9 GPUs")}
    assert needing_own_answers(jobs, answers) == jobs[1:]
    assert words_of(jobs, answers) == {"ja": "BadConstraints", "jb": "Priority"}
