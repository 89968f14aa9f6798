"""Fill levels of the log: every kind of fact has one, facts that end something have the most room,
and each fact is charged to a tenant or to none.
"""

from libs.common import facts as f
from libs.common.model import JobId, TenantId
from libs.common.model_spec import ModelSpec
from services.api_gateway.access import room
from tests.given import given, waiting


def test_every_kind_that_a_gateway_records_has_a_level() -> None:
    assert set(room.LEVELS) == set(f.GatewayFact.__args__)


def test_submissions_stop_before_changes_before_records_before_endings() -> None:
    assert 0 < room.SUBMISSIONS < room.CHANGES < room.RECORDS < room.ENDINGS < 1


def test_an_update_of_a_job_stops_with_submissions_and_a_cancellation_last() -> None:
    assert room.level_of(f.JobUpdated(job_id=JobId("j"), priority=1)) == room.SUBMISSIONS
    assert room.level_of(f.CancelRequested(job_id=JobId("j"))) == room.ENDINGS


def test_a_fact_is_charged_to_the_tenant_that_it_names_or_whose_job_or_model_it_names() -> None:
    model = f.ModelDeployed(name="chat", spec=ModelSpec(command=("serve",)), tenant=TenantId("red"))
    cluster = given(waiting("j", tenant="blue"), model).cluster
    assert room.tenant_of(cluster, model) == "red"
    assert room.tenant_of(cluster, f.CancelRequested(job_id=JobId("j"))) == "blue"
    assert room.tenant_of(cluster, f.ModelScaled(name="chat", replicas=2)) == "red"


def test_a_fact_about_nothing_that_a_tenant_has_is_charged_to_none() -> None:
    model = f.ModelDeployed(name="chat", spec=ModelSpec(command=("serve",)))
    cluster = given(model).cluster
    assert room.tenant_of(cluster, f.CancelRequested(job_id=JobId("unknown"))) == ""
    assert room.tenant_of(cluster, f.ModelScaled(name="unknown", replicas=2)) == ""
    # The name of a price may be that of a model.
    assert room.tenant_of(cluster, f.PriceSet(name="chat")) == ""
