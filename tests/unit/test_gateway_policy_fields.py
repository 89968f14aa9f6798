"""`scheduling_policy`: each word says something, and what contradicts it is refused."""

import pytest

from libs.common.errors import Refused
from libs.common.model import JobId, JobSpec
from services.api_gateway.intents.job_intents import submission


def spec(**fields: object) -> JobSpec:
    return submission({"command": ["a"], **fields}, JobId("j1")).spec


@pytest.mark.parametrize(
    "fields",
    [
        {"scheduling_policy": "fifo"},
        {"scheduling_policy": "priority", "priority": 0},
        {"scheduling_policy": "gang", "nodes": 2},
    ]
    + [
        {"scheduling_policy": "affinity", name: value}
        for name, value in (("node_list", ["n1"]), ("node_labels", {"a": "b"}))
    ],
)
def test_a_guarantee_that_fits_its_job_is_recorded(fields: dict[str, object]) -> None:
    assert spec(**fields).scheduling_policy == fields["scheduling_policy"]


def test_real_time_goes_before_all_others_and_never_waits_for_what_cannot_be() -> None:
    made = spec(scheduling_policy="real_time")
    assert (made.priority, made.reject_if_impossible) == (100, True)


def test_without_a_guarantee_no_field_is_changed() -> None:
    assert spec() == spec(scheduling_policy="") == JobSpec(command=("a",))


@pytest.mark.parametrize(
    ("fields", "remedy"),
    [
        ({"scheduling_policy": "fifo", "priority": 50}, "leave out priority"),
        ({"scheduling_policy": "priority"}, "priority is missing: give 0 to 100"),
        ({"scheduling_policy": "affinity"}, "no field restricts where the job may run"),
        (
            {"scheduling_policy": "affinity", "node_list": []},
            "no field restricts where the job may run",
        ),
        ({"scheduling_policy": "gang"}, "give nodes, 2 or more"),
        ({"scheduling_policy": "real_time", "priority": 1}, "the priority is always 100"),
        (
            {"scheduling_policy": "real_time", "reject_if_impossible": False},
            "leave out reject_if_impossible",
        ),
        (
            {"scheduling_policy": "lottery"},
            (
                "'lottery' is not known: leave it out, or give one of fifo, priority, affinity, "
                "gang, real_time"
            ),
        ),
        ({"scheduling_policy": 7}, "7 is not known"),
        ({"scheduling_policy": ["fifo"]}, "is not known"),
    ],
)
def test_request_that_contradicts_its_scheduling_policy_is_refused(
    fields: dict[str, object], remedy: str
) -> None:
    with pytest.raises(Refused, match=f"^scheduling_policy: .*{remedy}"):
        spec(**fields)
