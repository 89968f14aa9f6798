"""Which uploads a cluster still needs."""

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import JobId, TenantId
from libs.common.model_spec import ModelSpec
from libs.common.state.needed_uploads import needed_uploads
from tests.given import given, waiting

MODEL = f.ModelDeployed(
    name="m",
    tenant=TenantId("b"),
    user="ada",
    spec=ModelSpec(command=("serve",), replicas=1, upload="model"),
)


def needed(*facts: AnyFact) -> list[tuple[str, str]]:
    return sorted(needed_uploads(given(*facts).cluster))


def test_an_upload_is_needed_while_a_job_or_a_deployed_model_uses_it() -> None:
    job = waiting("j1", tenant="a", upload="job")
    assert needed(*job, MODEL) == [("a", "job"), ("b", "model")]


def test_an_upload_of_ended_jobs_and_undeployed_models_is_not_needed() -> None:
    (submitted, *_) = waiting("j1", tenant="a", upload="job")
    rejected = f.JobRejected(job_id=JobId("j1"), reason="no")
    assert needed(submitted, rejected) == []
    gone = f.ModelUndeployed(name="m", tenant=TenantId("b"), user="ada")
    assert needed(MODEL, gone) == []
