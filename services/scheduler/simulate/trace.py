"""The submissions of a simulation: rows of a trace as jobs of Muster. Pure.

A trace counts a job's GPUs over all nodes. A job that is larger than a node takes as few nodes as
possible, evenly.
"""

from collections.abc import Iterable, Iterator
from math import ceil
from typing import Final, NamedTuple

from libs.common.errors import Refused
from libs.common.model import (
    GPUS_PER_NODE_MAX,
    NODES_MAX,
    PRIORITY_MAX,
    WHOLE_GPU,
    JobId,
    JobSpec,
    TenantId,
)

SECOND: Final = 1_000_000_000
MIB: Final = 1 << 20


class Row(NamedTuple):
    """One job of a trace.

    `gpus` are over all nodes, `share` is the part of each in hundredths; host resources are per
    node.
    """

    name: str
    submit_s: float
    duration_s: float
    gpus: int
    tenant: str = "default"
    share: int = WHOLE_GPU
    priority: int = 50
    cpus_milli: int = 0
    memory_bytes: int = 0
    models: tuple[str, ...] = ()
    time_limit_s: int = 0


class Request(NamedTuple):
    """A job with its submission time and duration."""

    job_id: JobId
    tenant: TenantId
    submit_ns: int
    duration_ns: int
    spec: JobSpec

    @property
    def volume(self) -> int:
        """Hundredths of a GPU over all nodes."""
        return self.spec.nodes * self.spec.gpus * self.spec.gpu_share


def requests(
    rows: Iterable[Row], per_node: int, speed: float = 1.0, limits: float = 0.0
) -> list[Request]:
    """Return the jobs in the order of their submission.

    `per_node` is the number of GPUs of the largest node. With `speed` 2 they are submitted in half
    the time. With `limits`, every job has a time limit of this many times its duration. A job ends
    at its limit.
    """
    found: dict[str, Request] = {}
    for row in rows:
        if row.name in found:
            raise Refused(f"the trace names job {row.name} twice")
        limit_s = ceil(limits * row.duration_s) or row.time_limit_s
        duration_s = min(row.duration_s, limit_s or row.duration_s)
        spec = _spec(row, per_node, limit_s)
        submit, duration = int(row.submit_s / speed * SECOND), max(1, int(duration_s * SECOND))
        found[row.name] = Request(
            job_id=JobId(row.name),
            tenant=TenantId(row.tenant),
            submit_ns=submit,
            duration_ns=duration,
            spec=spec,
        )
    return sorted(found.values(), key=lambda request: request.submit_ns)


def _spec(row: Row, per_node: int, limit_s: int) -> JobSpec:
    nodes = _nodes(row.gpus, per_node)
    gpus = -(-row.gpus // nodes)
    if (
        nodes > NODES_MAX
        or gpus > GPUS_PER_NODE_MAX
        or not 0 < row.share <= WHOLE_GPU
        or not 0 <= row.priority <= PRIORITY_MAX
    ):
        raise Refused(
            f"job {row.name} asks for more than a job may: {row.gpus} GPUs, {row.share} "
            f"hundredths of each, priority {row.priority}"
        )
    return JobSpec(
        command=("true",),
        nodes=nodes,
        gpus=gpus,
        gpu_share=row.share,
        priority=row.priority,
        time_limit_s=limit_s,
        cpus_milli=row.cpus_milli,
        memory_bytes=row.memory_bytes,
        model=row.models,
        reject_if_impossible=True,
    )


def _nodes(gpus: int, per_node: int) -> int:
    """Return the fewest nodes that share the GPUs evenly, if fewer than twice the minimum do;
    otherwise the minimum.
    """
    fewest = max(1, -(-gpus // per_node))
    return next((nodes for nodes in range(fewest, 2 * fewest) if gpus % nodes == 0), fewest)


def shuffled(rows: Iterable[Row], order: Iterable[int]) -> Iterator[Row]:
    """Yield the jobs in this order at the same times."""
    kept = list(rows)
    times = sorted(row.submit_s for row in kept)
    for submit_s, index in zip(times, order, strict=True):
        yield kept[index]._replace(submit_s=submit_s)
