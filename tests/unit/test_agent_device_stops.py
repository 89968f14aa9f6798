"""The end of a job that exits with 0 after the agent stopped it because of a device's error."""

import pytest

from libs.common import facts as f
from libs.common.messages import StopOrder
from services.node_agent.core import observations as o
from tests.given_devices import ended, erred, node
from tests.given_node import ref


@pytest.mark.parametrize(("error", "reason"), [("xid 31", "gpu_error"), ("xid 95", "gpu_fault")])
def test_a_job_that_was_stopped_for_a_device_error_ends_for_it_although_it_exits_with_0(
    error: str, reason: str
) -> None:
    made = node().running()
    made.see(erred(error))
    finished, _ = ended(made, end=o.Exit(executed=True, exit_code=0, reason="stopped"))
    assert isinstance(finished, f.JobFinished) and finished.reason == reason
    assert finished.detail.startswith(f"{error} of GPU") and finished.exit_code == 0


def test_a_job_that_was_stopped_before_its_device_erred_and_exits_with_0_was_stopped() -> None:
    made = node().running()
    order = {"reason": "node_removed", "signal": 15, "grace_ms": 500}
    made.orders(StopOrder(job_id=ref().job_id, attempt=1, seq=40, **order))  # type: ignore[arg-type]
    made.see(erred("xid 31"))
    finished, _ = ended(made, end=o.Exit(executed=True, exit_code=0, reason="stopped"))
    assert isinstance(finished, f.JobFinished) and finished.reason == "stopped"
