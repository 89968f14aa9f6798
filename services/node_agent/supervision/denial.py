"""Changes which devices a running attempt may open, by its supervisor.

The supervisor does it, not the agent: it serves one attempt after the other in one control group,
and refuses a request for an attempt that it does not serve any more. Tests:
tests/integration/test_device_filter.py.
"""

from collections.abc import Sequence
from typing import Final

from libs.common.errors import Unavailable
from services.node_agent.supervision import control_client
from services.node_agent.supervisor import records

# How long a supervisor may take to answer.
ANSWER_S: Final = 5.0


async def deny(job_dir: str, denied: Sequence[Sequence[int]]) -> None:
    """Deny these devices to an attempt; see `JobSupervisors.deny`."""

    def is_over() -> bool:
        return records.read_exit(job_dir) is not None

    request = {"op": "deny", "denied": denied}
    reply = await control_client.ask_until_listening(job_dir, request, ANSWER_S, is_over)
    if reply is not None:
        if why := reply["failed"]:
            raise Unavailable(f"the kernel refused its device filter: {why}")
        return
    with control_client.failures():
        if not is_over():
            raise Unavailable("its supervisor does not answer")
