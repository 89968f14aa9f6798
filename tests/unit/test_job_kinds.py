"""The kind of a job: a job, a replica of a model, or an allocation."""

from libs.common.model import Allocation, JobSpec, Serve


def test_a_job_is_a_job_unless_it_serves_a_model_or_holds_devices() -> None:
    assert JobSpec(command=("true",)).kind == "job"
    assert JobSpec(command=("serve",), serve=Serve(model="m", generation=1)).kind == "replica"
    assert JobSpec(command=("sleep",), allocation=Allocation(expires_s=60)).kind == "allocation"
