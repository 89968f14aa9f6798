"""Facts about diagnoses in one line, and diagnoses as the API shows them. Pure."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from libs.common import facts as f
from libs.common.diagnosis.evidence import Group, Suspect, Verdict
from libs.common.model import NodeId
from libs.common.state.cluster import Job
from services.api_gateway.times import rfc3339


class DiagnosisShown(msgspec.Struct):
    """A recorded diagnosis of a job.

    `verdict` says what was found, and `cause` why, each in one word (docs/diagnose.md). The other
    ranks wait for `rank` on `node_id`: null if there is no single one. `places` tells where groups
    of ranks were. `automatic`: no user asked for it.
    """

    attempt: int
    verdict: str
    sentence: str
    cause: str
    rank: int | None
    node_id: str
    others: int
    places: tuple[str, ...]
    automatic: bool
    user: str
    at: str | None


class DiagnosisMade(msgspec.Struct):
    """The result of a diagnosis.

    `suspects` begins with the most probable rank, `groups` with the largest. `notes` say which
    evidence is missing, and why. `recorded`: the log has it.
    """

    id: str
    attempt: int
    verdict: str
    sentence: str
    cause: str
    suspects: tuple[Suspect, ...]
    groups: tuple[Group, ...]
    notes: tuple[str, ...]
    recorded: bool
    took_ms: int


def diagnoses_of(job: Job) -> list[DiagnosisShown]:
    """Return the recorded diagnoses of a job, the last one first."""
    return [
        DiagnosisShown(
            attempt=one.attempt,
            verdict=one.verdict,
            sentence=one.sentence,
            cause=one.cause,
            rank=one.rank if one.rank >= 0 else None,
            node_id=one.node_id,
            others=one.others,
            places=one.places,
            automatic=one.automatic,
            user=one.user,
            at=rfc3339(one.at_ns),
        )
        for one in reversed(job.diagnoses)
    ]


def fact_of(job: Job, verdict: Verdict, user: str, automatic: bool) -> f.JobDiagnosed:
    """Return the fact that records a verdict."""
    first = verdict.suspects[0] if verdict.suspects else None
    return f.JobDiagnosed(
        job_id=job.job_id,
        attempt=job.attempt,
        verdict=verdict.kind,
        sentence=verdict.sentence[:SENTENCE_MAX],
        cause=verdict.cause,
        rank=first.rank if first is not None else -1,
        node_id=first.node_id if first is not None else NodeId(""),
        others=max(0, len(verdict.suspects) - 1),
        places=tuple(
            f"{group.ranks[:RANKS_MAX]}: {group.place[:PLACE_MAX]}" for group in verdict.groups
        ),
        automatic=automatic,
        user=user,
    )


def is_news(job: Job, verdict: Verdict) -> bool:
    """Return whether the verdict differs from the last recorded one of the attempt."""
    last = job.diagnoses[-1] if job.diagnoses else None
    first = verdict.suspects[0] if verdict.suspects else None
    found = (first.rank, first.node_id) if first is not None else (-1, "")
    return last is None or (last.attempt, last.verdict, last.rank, last.node_id) != (
        job.attempt,
        verdict.kind,
        *found,
    )


SENTENCE_MAX: Final = 1_000
PLACE_MAX: Final = 200
RANKS_MAX: Final = 200


def _diagnosed(fact: f.JobDiagnosed) -> str:
    who = "diagnosed without a request" if fact.automatic else f"diagnosed for {fact.user}"
    return f"{who}: {fact.sentence}"


DIAGNOSIS_WORDS: Final[dict[type, Callable[[Any], str]]] = {f.JobDiagnosed: _diagnosed}
