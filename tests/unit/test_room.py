"""Fill levels of the log: every kind of fact has one, and facts that end something have the most
room.
"""

from libs.common import facts as f
from libs.common.model import JobId
from services.api_gateway.access import room


def test_every_kind_that_a_gateway_records_has_a_level() -> None:
    assert set(room.LEVELS) == set(f.GatewayFact.__args__)


def test_submissions_stop_before_changes_before_records_before_endings() -> None:
    assert 0 < room.SUBMISSIONS < room.CHANGES < room.RECORDS < room.ENDINGS < 1


def test_an_update_of_a_job_stops_with_submissions_and_a_cancellation_last() -> None:
    assert room.level_of(f.JobUpdated(job_id=JobId("j"), priority=1)) == room.SUBMISSIONS
    assert room.level_of(f.CancelRequested(job_id=JobId("j"))) == room.ENDINGS
