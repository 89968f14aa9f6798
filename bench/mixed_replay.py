"""The mixed load of `bench.mixed` in virtual time: how much of the cluster is held while jobs wait,
and where the rest goes.

The scheduler's own state and rules decide (`services/scheduler/simulate`). Jobs take START_S to
start, SAVE_S to save their work when they are preempted, and RELEASE_S until their devices are free
again; what they saved they need not repeat. Six half devices belong to a model all the time. The
first minute does not count. One line per seed, and the means.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from pathlib import Path
from statistics import mean
from typing import Final

from bench import mixed_load
from bench.cluster import QUICK, say
from libs.common import facts as f
from libs.common import subjects
from libs.common.facts import AnyFact
from libs.common.model import WHOLE_GPU, JobId, JobSpec, TenantId
from services.scheduler.simulate import replay
from services.scheduler.simulate.meter import Meter
from services.scheduler.simulate.nodes import nodes_of
from services.scheduler.simulate.trace import SECOND, Request

SEEDS: Final = (42,) if QUICK else (42, 1, 2, 3, 4)
UNTIL_S: Final = 1_800.0 if QUICK else 3_600.0
WARM_S: Final = 60.0
START_S: Final = 0.3
SAVE_S: Final = 0.5
RELEASE_S: Final = 0.3
CLUSTER: Final = "4x8"
TENANT: Final = TenantId("default")
# Events at one instant, in this order. A job's own end comes after that of a preemption.
RELEASED, SAVED, ENDED = 0, 1, 2
SUBMITTED: Final = 3

Event = tuple[int, int, int, JobId]


class MixedReplay(replay.Replay):
    """A replay with preemption. `left_ns` is the work that each job still has to do."""

    def __init__(self, requests: list[Request]) -> None:
        nodes = nodes_of(CLUSTER)
        meter = Meter({node.node_id: WHOLE_GPU * len(node.gpus) for node in nodes})
        super().__init__(nodes, requests, "priority", "fragmentation", meter)
        self.events = [
            (request.submit_ns, SUBMITTED, number, request.job_id)
            for number, request in enumerate(requests)
        ]
        self.left_ns = {request.job_id: request.duration_ns for request in requests}
        self.began_ns: dict[JobId, int] = {}
        self.saving: set[JobId] = set()
        self.ended: dict[tuple[JobId, int], tuple[f.JobPlaced, int]] = {}
        # Hundredths of a device times nanoseconds, by where they are not held.
        self.lost = {"no_job_fits": 0, "a_job_fits": 0}

    def run(self, until_ns: int | None = None) -> None:
        assert until_ns is not None, "the model never ends"
        while self.events and self.events[0][0] <= until_ns:
            self._pass_time(self.events[0][0])
            while self.events and self.events[0][0] == self.scheduler.now:
                self._happen(heappop(self.events))
            for fact in self.scheduler.decide():
                self._follow(fact)
        self._pass_time(until_ns)

    def _pass_time(self, now: int) -> None:
        span = now - max(self.scheduler.now, int(WARM_S * SECOND))
        if span > 0 and self.meter.waiting:
            idle = self.meter.total - self.meter.used
            self.lost["a_job_fits" if self._fits() else "no_job_fits"] += span * idle
        self.scheduler.now = now
        self.meter.advance(now)

    def _fits(self) -> bool:
        """Return whether a waiting job of one node needs no more devices than a node has free."""
        state = self.scheduler.state
        most = max(
            sum(not view.holds for view in place.views)
            for place in state.capacity.places
            if place is not None
        )
        specs = (state.cluster.jobs[job_id].spec for job_id in state.queue.waiting)
        return any(spec.nodes == 1 and spec.gpus <= most for spec in specs)

    def _happen(self, event: Event) -> None:
        _, what, attempt, job_id = event
        placed = self.running.get(job_id)
        if what == SUBMITTED:
            self._submit(self.requests[job_id])
        elif what == RELEASED:
            self._release(job_id, attempt)
        elif placed is not None and placed.attempt == attempt:
            if what == SAVED:
                ran_ns = self.scheduler.now - self.began_ns[job_id]
                useful_ns = max(0, ran_ns - int((START_S + SAVE_S) * SECOND))
                self.left_ns[job_id] = max(1, self.left_ns[job_id] - useful_ns)
                self.saving.discard(job_id)
                self._exit(job_id, 143)
            elif job_id not in self.saving:
                self._exit(job_id, 0)

    def _follow(self, fact: AnyFact) -> None:
        if isinstance(fact, f.JobPreempted):
            self.preemptions += 1
            self.saving.add(fact.job_id)
            self._later(SAVE_S, SAVED, fact.attempt, fact.job_id)
        elif isinstance(fact, f.JobClosed):
            self.meter.finish(self.requests[fact.job_id])
            self._charge(fact)
        else:
            super()._follow(fact)

    def _start(self, placed: f.JobPlaced) -> None:
        job_id = placed.job_id
        for member in placed.members:
            started = f.JobStarted(job_id=job_id, attempt=placed.attempt, node_id=member.node_id)
            self.scheduler.hear(subjects.node(member.node_id), started)
        self.running[job_id], self.began_ns[job_id] = placed, self.scheduler.now
        held = [(one.node_id, sum(hold.share for hold in one.gpus)) for one in placed.members]
        self.meter.place(self.requests[job_id], held)
        self._later(self.left_ns[job_id] / SECOND, ENDED, placed.attempt, job_id)

    def _exit(self, job_id: JobId, exit_code: int) -> None:
        placed = self.running.pop(job_id)
        for member in placed.members:
            ended = f.JobFinished(
                job_id=job_id,
                attempt=placed.attempt,
                node_id=member.node_id,
                exit_code=exit_code,
                run_ms=1,
            )
            self.scheduler.hear(subjects.node(member.node_id), ended)
        self.ended[job_id, placed.attempt] = placed, exit_code
        self._later(RELEASE_S, RELEASED, placed.attempt, job_id)

    def _release(self, job_id: JobId, attempt: int) -> None:
        placed, exit_code = self.ended.pop((job_id, attempt))
        for member in placed.members:
            freed = f.JobReleased(job_id=job_id, attempt=attempt, node_id=member.node_id)
            self.scheduler.hear(subjects.node(member.node_id), freed)
        self.meter.leave(self.requests[job_id])
        if exit_code:
            self.meter.wait(self.requests[job_id])

    def _later(self, seconds: float, what: int, attempt: int, job_id: JobId) -> None:
        at_ns = self.scheduler.now + max(1, int(seconds * SECOND))
        heappush(self.events, (at_ns, what, attempt, job_id))


def requests(seed: int) -> list[Request]:
    """Return the jobs of the mixed load, and the model's replicas, by their submission."""
    mixed_load.SEED = seed  # type: ignore[misc]
    return sorted([*_jobs(), *_replicas()], key=lambda request: request.submit_ns)


def _jobs() -> Iterator[Request]:
    for number, one in enumerate(mixed_load.arrivals(UNTIL_S, Path("unused"))):
        fields = one.fields
        is_gang = bool(fields.get("preemptible"))
        spec = JobSpec(
            command=("true",),
            nodes=fields.get("nodes", 1),
            gpus=fields["gpus"],
            priority=fields["priority"],
            time_limit_s=fields["time_limit_s"],
            preemptible=is_gang,
            checkpoint_signal=10 if is_gang else 0,
            checkpoint_grace_s=5 if is_gang else 0,
        )
        yield Request(
            job_id=JobId(f"{one.name}-{number:05}"),
            tenant=TENANT,
            submit_ns=int(one.at_s * SECOND),
            duration_ns=int((START_S + float(one.arguments[1])) * SECOND),
            spec=spec,
        )


def _replicas() -> Iterator[Request]:
    share = mixed_load.REPLICA_SHARE
    for number in range(mixed_load.REPLICAS):
        spec = JobSpec(command=("true",), gpus=1, gpu_share=share, priority=95)
        duration_ns = int(2 * UNTIL_S * SECOND)
        yield Request(JobId(f"replica-{number}"), TENANT, 0, duration_ns, spec)


def measure(seed: int) -> float:
    """Replay one seed, print its figures, and return the part of all devices that is held."""
    found = MixedReplay(requests(seed))
    found.run(int(WARM_S * SECOND))
    meter = found.meter
    busy, queued_ns = meter.busy_queued, meter.queued_ns
    found.run(int(UNTIL_S * SECOND))
    whole = (meter.queued_ns - queued_ns) * meter.total
    held = 100 * (meter.busy_queued - busy) / whole
    lost = {f"{name}_pct": round(100 * part / whole, 2) for name, part in found.lost.items()}
    setting = {"seed": seed, "preemptions": found.preemptions, **lost}
    say("held_while_queued_pct", held, "% of all devices", len(meter.delays), **setting)
    return held


def main() -> None:
    held = [measure(seed) for seed in SEEDS]
    say("held_while_queued_mean_pct", mean(held), "% of all devices", len(SEEDS), until_s=UNTIL_S)


if __name__ == "__main__":
    main()
