"""The fact about a diagnosed job. Pure; part of the union in `facts/__init__.py`."""

from libs.common.facts.fact import Fact
from libs.common.model import JobId, NodeId


class JobDiagnosed(Fact, frozen=True, tag="job.diagnosed"):
    """A gateway examined the nodes of an attempt and found why it makes no progress.

    `verdict` and `cause` are words of `libs/common/diagnosis/evidence.py`. `rank` on `node_id` is
    the one that the others wait for (-1: no single one). `others` counts further suspects. `places`
    tells where groups of ranks were, one text each. `automatic`: no user asked; else `user` did.
    The evidence stays on the nodes (docs/diagnose.md).
    """

    job_id: JobId
    attempt: int
    verdict: str
    sentence: str
    cause: str = ""
    rank: int = -1
    node_id: NodeId = NodeId("")
    others: int = 0
    places: tuple[str, ...] = ()
    automatic: bool = False
    user: str = ""
