"""Changes which devices a running attempt may open, by its supervisor.

The supervisor does it, not the agent: it serves one attempt after the other in one control group,
and refuses a request for an attempt that it does not serve any more. Tests:
tests/integration/test_device_filter.py.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from libs.common.errors import Unavailable
from services.node_agent.supervision import control_client
from services.node_agent.supervisor import records

# How long a supervisor may take to answer.
ANSWER_S: Final = 5.0
# A supervisor listens a moment after its fork.
CONNECT_TRIES: Final = 200
CONNECT_AGAIN_S: Final = 0.01


async def deny(job_dir: str, denied: Sequence[Sequence[int]]) -> None:
    """Deny these devices to an attempt; see `JobSupervisors.deny`."""
    try:
        failed = await _deny(job_dir, denied)
    except (OSError, ValueError) as error:  # no descriptor is free, or half of a reply came
        raise Unavailable(f"its supervisor cannot be asked: {error}") from error
    if failed:
        raise Unavailable(failed)


async def _deny(job_dir: str, denied: Sequence[Sequence[int]]) -> str:
    """Return why the devices cannot be denied; empty if they are, or if the attempt has ended."""
    request = {"op": "deny", "denied": denied}
    for _ in range(CONNECT_TRIES):
        if records.read_exit(job_dir) is not None:
            return ""
        try:
            reply = await control_client.ask(job_dir, request, ANSWER_S)
        except control_client.NotListening:
            await asyncio.sleep(CONNECT_AGAIN_S)
            continue
        if reply is None:
            break
        return f"the kernel refused its device filter: {why}" if (why := reply["failed"]) else ""
    return "its supervisor does not answer" if records.read_exit(job_dir) is None else ""
