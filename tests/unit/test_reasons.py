"""The reasons of facts (libs/common/reasons.py): every process uses the same words."""

from libs.common import reasons
from services.node_agent.supervisor import elements, ending, records


def test_the_supervisor_uses_the_recorded_words() -> None:
    assert (ending.STOPPED, ending.LEASE_EXPIRED) == (reasons.STOPPED, reasons.LEASE_EXPIRED)
    assert ending.SUPERVISOR_LOST == reasons.SUPERVISOR_LOST
    assert records.OUT_OF_MEMORY == reasons.OUT_OF_MEMORY
    assert elements.EXEC_FAILED == reasons.EXEC_FAILED
