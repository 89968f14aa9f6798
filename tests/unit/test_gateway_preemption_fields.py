"""Preemption fields of a submission: the accepted ones, and contradictions."""

import pytest

from libs.common.errors import Refused
from libs.common.model import JobId
from services.api_gateway.intents.job_intents import submission

JOB = {"command": ["true"]}


def spec(**fields: object) -> object:
    return submission({**JOB, **fields}, JobId("j")).spec


def test_people_s_words_are_read() -> None:
    asked = submission(
        {
            **JOB,
            "preemptible": True,
            "checkpoint_grace": "1m",
            "checkpoint_signal": "USR1",
            "min_run": "10m",
        },
        JobId("j"),
    ).spec
    assert (asked.checkpoint_grace_s, asked.checkpoint_signal, asked.min_run_s) == (60, 10, 600)
    assert (
        submission(
            {**JOB, "preemptible": True, "checkpoint_grace_s": 0, "min_run_s": "90"}, JobId("j")
        ).spec.min_run_s
        == 90
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"checkpoint_grace": "1m"}, "preemptible"),
        ({"min_run": "1m"}, "preemptible"),
        ({"preemptible": True, "requeue": False}, "requeue"),
        ({"preemptible": True, "checkpoint_signal": "NONE"}, "signal"),
        ({"preemptible": True, "min_run": "1m", "min_run_s": 60}, "min_run"),
        ({"preemptible": True, "checkpoint_grace": "2d"}, "checkpoint_grace_s"),
    ],
)
def test_preemption_fields_that_contradict_each_other_are_refused(
    fields: dict[str, object], words: str
) -> None:
    with pytest.raises(Refused, match=words):
        spec(**fields)
