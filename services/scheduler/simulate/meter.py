"""The measurements of a replay: held devices and waiting jobs, integrated over virtual time. Pure.

Both protocols call the same methods (`wait`, `place`, `leave`, `finish`) and `advance`. Nothing is
sampled: between two events nothing changes, so the integrals are exact.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from libs.common.model import JobId, NodeId, TenantId
from services.scheduler.simulate.trace import Request


class Meter:
    """Measurements in hundredths of a GPU and in nanoseconds.

    `curve` holds (time, share held from then on). `delays` are the waits until the first placement.
    """

    def __init__(self, capacity: Mapping[NodeId, int]) -> None:
        self.capacity: Final = dict(capacity)
        self.total: Final = sum(capacity.values())
        self.now = 0
        self.used = 0
        self.stranded = 0
        self.waiting = 0
        self.curve: Final[list[tuple[int, int]]] = [(0, 0)]
        self.requests: Final[dict[JobId, Request]] = {}
        self.delays: Final[dict[JobId, int]] = {}
        self.completions: Final[dict[JobId, int]] = {}
        self.began_ns: int | None = None
        self.ended_ns = 0
        self.busy = self.queued_ns = self.busy_queued = self.stranded_queued = 0
        self.jain = 0.0
        self._free: Final = dict(capacity)
        self._where: Final[dict[JobId, dict[NodeId, int]]] = {}
        self._held: Final[dict[TenantId, int]] = {}
        self._asked: Final[dict[TenantId, int]] = {}

    def advance(self, now: int) -> None:
        """Advance the clock; nothing changed since the last call."""
        span = now - self.now
        self.now = now
        if span <= 0 or self.began_ns is None:
            return
        self.busy += span * self.used
        if self.waiting:
            self.queued_ns += span
            self.busy_queued += span * self.used
            self.stranded_queued += span * self.stranded
            self.jain += span * self.fairness()

    def wait(self, request: Request) -> None:
        """Note that a job was submitted, or waits again."""
        if self.began_ns is None:
            self.began_ns = self.now
        self.requests[request.job_id] = request
        self.waiting += 1
        self._asked[request.tenant] = self._asked.get(request.tenant, 0) + request.volume

    def forget(self, request: Request) -> None:
        """Note that a job stopped waiting for ever."""
        self.waiting -= 1
        self._asked[request.tenant] -= request.volume

    def place(self, request: Request, where: Iterable[tuple[NodeId, int]]) -> None:
        """Note where a job was placed."""
        self.forget(request)
        self.delays.setdefault(request.job_id, self.now - request.submit_ns)
        held = self._where[request.job_id] = dict(where)
        for node_id, part in held.items():
            self._change(node_id, part)
        self._held[request.tenant] = self._held.get(request.tenant, 0) + sum(held.values())
        self._draw()

    def leave(self, request: Request) -> None:
        """Note that a job's devices are free again."""
        held = self._where.pop(request.job_id)
        for node_id, part in held.items():
            self._change(node_id, -part)
        self._held[request.tenant] -= sum(held.values())
        self._draw()

    def finish(self, request: Request) -> None:
        """Note that a job completed."""
        self.completions[request.job_id] = self.now - request.submit_ns
        self.ended_ns = self.now

    def fairness(self) -> float:
        """Return Jain's index over how far each tenant with a request is served.

        A tenant is served by what it holds relative to its request or an equal part of the cluster,
        whichever is smaller. 1 means all alike; 1/n means that one of n tenants has everything.
        """
        asking = [(self._held.get(tenant, 0), asked) for tenant, asked in self._asked.items()]
        asking = [(held, held + asked) for held, asked in asking if held + asked]
        part = self.total / max(1, len(asking))
        served = [min(1.0, held / min(part, asked)) for held, asked in asking]
        squares = sum(part * part for part in served)
        return sum(served) ** 2 / (len(served) * squares) if squares else 1.0

    def _change(self, node_id: NodeId, part: int) -> None:
        """Change what is held of the node.

        Idle devices of a partly held node are stranded: jobs that need whole nodes cannot use them.
        """
        whole, before = self.capacity[node_id], self._free[node_id]
        after = self._free[node_id] = before - part
        assert 0 <= after <= whole, f"{node_id} gives more than it has"
        self.stranded += (after if after < whole else 0) - (before if before < whole else 0)
        self.used += part

    def _draw(self) -> None:
        if self.curve[-1][0] == self.now:
            self.curve.pop()
        self.curve.append((self.now, self.used))
