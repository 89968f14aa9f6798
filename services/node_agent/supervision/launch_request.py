"""The agent's request to the supervisors' side to start one attempt.

`directories.protocol.Launch` is the agent's own type, with devices, probes and accounts. This one
is plain data that travels to the supervisor. `JobDirectories` turns the first into the second.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from libs.common.errors import Refused
from services.node_agent.machine.cgroups import Limits
from services.node_agent.supervision import lost
from services.node_agent.supervisor import order

DEFAULT_OUTPUT_BYTES = 64 * 1024 * 1024


class AlreadyStarted(Refused):
    """This (job, attempt) was started before, by this agent or an earlier one.

    `seq` is the sequence of the order that started it, and `incarnation` the one of the node that
    the order was for; 0 if that is unknown.
    """

    def __init__(self, text: str, seq: int = 0, incarnation: int = 0) -> None:
        super().__init__(text)
        self.seq = seq
        self.incarnation = incarnation

    def is_by_other(self, seq: int, incarnation: int) -> bool:
        """Return whether it is certain that another order than this one started the attempt.

        After a restore an order may by chance have the sequence of a lost one, but the node has a
        later incarnation.
        """
        return self.seq not in (0, seq) or self.incarnation not in (0, incarnation)


@dataclass(frozen=True)
class LaunchRequest:
    """The command to run and its limits.

    `env` is the full environment; the attempt's MUSTER_* variables are added. Paths must be
    absolute. `note` stays in the marker for the next agent (`records.read_summary`). `elements`:
    see `supervisor/order.py`.
    """

    job_id: str
    attempt: int
    argv: list[str]
    env: dict[str, str]
    workdir: str
    lease_path: str
    rank: int = 0
    stdin: bool = False
    output_limit_bytes: int = DEFAULT_OUTPUT_BYTES
    ignore_lease: bool = False
    limits: Limits = field(default_factory=Limits)
    account: list[int] = field(default_factory=list)
    elements: Mapping[str, Any] = field(default_factory=dict)
    note: Mapping[str, Any] = field(default_factory=dict)


def frame_of(request: LaunchRequest, job_dir: str, agent_socket: str) -> bytes:
    """Return the order for the zygote. Raises Refused if no process can have the request."""
    marks = {
        "MUSTER_JOB_ID": request.job_id,
        "MUSTER_ATTEMPT": str(request.attempt),
        "MUSTER_RANK": str(request.rank),
    }
    message = {
        **vars(request),
        "env": {**request.env, **marks, lost.JOB_DIR_VARIABLE: job_dir},
        "job_dir": job_dir,
        "agent_socket": agent_socket,
    }
    try:
        return order.frame_of(order.checked(message))
    except ValueError as error:
        raise Refused(
            f"{request.job_id} attempt {request.attempt} cannot be started: {error}"
        ) from None
