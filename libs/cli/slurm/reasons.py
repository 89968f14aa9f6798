"""Slurm's reason words for waiting jobs, from the job's fields and Muster's explanation.

Pure. `word_of_job` needs only the job's row; `word_of_answer` reads the answer of `muster why`.
Jobs that ask for the same share one answer, because each costs the scheduler time. Tests:
tests/unit/test_slurm_reasons.py, which holds the words against the scheduler's source.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from libs.cli.jobs import NEVER_HELD

Job = dict[str, Any]
Answer = dict[str, Any]

NONE: Final = "None"
RESOURCES: Final = "Resources"
PRIORITY: Final = "Priority"
DEPENDENCY: Final = "Dependency"
HELD_BY_USER: Final = "JobHeldUser"
HELD_BY_ADMIN: Final = "JobHeldAdmin"
ARRAY_LIMIT: Final = "JobArrayTaskLimit"
BEGIN_TIME: Final = "BeginTime"
NOT_AVAILABLE: Final = "ReqNodeNotAvail"
CONSTRAINTS: Final = "BadConstraints"
RESERVATION: Final = "Reservation"
TENANT_GPUS: Final = "AssocGrpGRES"
TENANT_BUDGET: Final = "AssocGrpGRESMinutes"
TENANT_MEMORY: Final = "AssocGrpMemLimit"

# The first words of a blocker's `what`, in the order in which they decide.
BLOCKERS: Final = (
    ("dependency", DEPENDENCY),
    ("held", HELD_BY_USER),
    ("array limit", ARRAY_LIMIT),
    ("refused by its nodes", BEGIN_TIME),
    ("waits before its next attempt", BEGIN_TIME),
    ("tenant budget", TENANT_BUDGET),
    ("tenant limit", TENANT_GPUS),
    ("devices being freed", RESOURCES),
    ("queue order", PRIORITY),
    ("reserved for", PRIORITY),
)
# Parts of the answer's sentence.
NOT_BEGUN: Final = "has not begun"
POOLS: Final = "of memory pools"
TRIED_AGAIN: Final = "it is tried again in"
# Beginnings of blockers about nodes that would serve if they were back.
AWAY: Final = ("node ", "GPUs unavailable", "refused this job lately")
WAITS_FOR_ELEMENTS: Final = "its elements to end"


def word_of_job(job: Job) -> str:
    """Return the reason that the job's own row tells; empty if only an explanation can."""
    if job.get("state") == "pending":
        return NONE
    if job.get("after"):
        return DEPENDENCY
    if job.get("held"):
        return HELD_BY_USER if _by_its_user(job) else HELD_BY_ADMIN
    if job.get("reserved"):
        return RESOURCES
    return ARRAY_LIMIT if job.get("waits_for") == WAITS_FOR_ELEMENTS else ""


def _by_its_user(job: Job) -> bool:
    holder = str(job.get("waits_for") or "").removesuffix(" to release it")
    return holder in ("", "its user", job.get("user"))


def word_of_answer(answer: Answer) -> str:
    """Return the reason for an explanation."""
    text = str(answer.get("answer") or "")
    blockers = [str(each.get("what") or "") for each in answer.get("blockers") or ()]
    if NOT_BEGUN in text:
        return RESERVATION
    if NEVER_HELD in text:
        return NOT_AVAILABLE if any(what.startswith(AWAY) for what in blockers) else CONSTRAINTS
    for start, word in BLOCKERS:
        if any(what.startswith(start) for what in blockers):
            return TENANT_MEMORY if word == TENANT_GPUS and POOLS in text else word
    return BEGIN_TIME if TRIED_AGAIN in text else RESOURCES


# The fields of a row in which jobs of one kind agree.
KIND: Final = (
    "tenant", "queue", "nodes", "nodes_max", "gpus", "gpu_share", "gpu_affinity", "cpus_milli",
    "memory_bytes", "reservation", "scheduling_policy",
)  # fmt: skip
# Reasons that jobs of one kind share. Behind a job that waits for resources, others wait for it.
SHARED: Final = {
    RESOURCES: PRIORITY,
    PRIORITY: PRIORITY,
    TENANT_GPUS: TENANT_GPUS,
    TENANT_BUDGET: TENANT_BUDGET,
    TENANT_MEMORY: TENANT_MEMORY,
}


def _kind_of(job: Job) -> str:
    return repr([job.get(name) for name in KIND])


def first_of_each_kind(jobs: Iterable[Job]) -> list[Job]:
    """Return the first job of each kind of request."""
    found: dict[str, Job] = {}
    for job in jobs:
        found.setdefault(_kind_of(job), job)
    return list(found.values())


def needing_own_answers(jobs: Iterable[Job], answers: Mapping[str, Answer]) -> list[Job]:
    """Return the jobs about which the answer for the first job of their kind says nothing."""
    shared: dict[str, bool] = {}
    found: list[Job] = []
    for job in jobs:
        answer = answers.get(str(job["id"]))
        if answer is not None:
            shared.setdefault(_kind_of(job), word_of_answer(answer) in SHARED)
        elif not shared.get(_kind_of(job), True):
            found.append(job)
    return found


def words_of(jobs: Iterable[Job], answers: Mapping[str, Answer]) -> dict[str, str]:
    """Return the reason of each job, by id; `Priority` where no answer tells it."""
    words: dict[str, str] = {}
    firsts: dict[str, str] = {}
    for job in jobs:
        answer, kind = answers.get(str(job["id"])), _kind_of(job)
        if answer is not None:
            words[str(job["id"])] = word_of_answer(answer)
            firsts.setdefault(kind, word_of_answer(answer))
        else:
            words[str(job["id"])] = SHARED.get(firsts.get(kind, PRIORITY), PRIORITY)
    return words
