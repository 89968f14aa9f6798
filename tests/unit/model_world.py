"""A scheduler with one model, and the facts about its replicas, for tests."""

from collections.abc import Sequence
from typing import Any

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import JobId, NodeId
from libs.common.model_spec import ModelSpec
from libs.common.state.cluster import Cluster, Model, ready_replicas
from services.scheduler.decide.decide import Observations, decide
from tests.given import (
    SECOND_NS,
    finished,
    given,
    released,
    started,
    tell,
)


def deployed(replicas: int = 2, **fields: Any) -> f.ModelDeployed:
    return f.ModelDeployed(
        name="chat",
        spec=ModelSpec(command=("serve", "{port}"), replicas=replicas, **fields),
        user="ada",
    )


class World:
    """A scheduler without a log; nodes answer as the test says. `at_s` is its clock.

    Gateways report at once that they have no outstanding request, unless `busy`. `wanted` is what
    the autoscaling law wants now. `said` holds all facts so far.
    """

    def __init__(self, *history: AnyFact | Sequence[AnyFact], at_s: float = 1) -> None:
        self.state = given(*history)
        self.at_s = at_s
        self.said: list[AnyFact] = []
        self.quiet: tuple[NodeId, ...] = ()
        self.busy = False
        self.wanted: tuple[f.ModelAutoscaled, ...] = ()
        self.decide()

    @property
    def cluster(self) -> Cluster:
        return self.state.cluster

    @property
    def model(self) -> Model:
        return self.cluster.models["chat"]

    def decide(self) -> list[AnyFact]:
        """Return the facts of all decisions that follow now."""
        new: list[AnyFact] = []
        now_ns = int(self.at_s * SECOND_NS)
        for _ in range(200):
            drained = () if self.busy else tuple(self.state.restless.draining)
            seen = Observations(quiet=self.quiet, drained=drained, wanted=self.wanted)
            facts = decide(self.state, now_ns, seen)
            if not facts:
                self.said += new
                return new
            new += facts
            self.state.apply_own(facts, now_ns)
        raise AssertionError(f"the rules never end: {new[-3:]}")

    def hear(self, *facts: AnyFact, at_s: float | None = None) -> list[AnyFact]:
        """Fold facts of other writers, and return the decisions that follow."""
        self.at_s = self.at_s if at_s is None else at_s
        for fact in facts:
            change = tell(self.cluster, fact, self.at_s)
            self.state.refresh(change)
        return self.decide()

    def node_of(self, job: str) -> str:
        return next(iter(self.cluster.jobs[JobId(job)].members))

    def begin(self, *jobs: str) -> list[AnyFact]:
        """Let these replicas start and answer."""
        return self.hear(
            *(
                fact
                for job in jobs
                for fact in (started(job, self.node_of(job)), ready(job, self.node_of(job)))
            )
        )

    def end(
        self, job: str, exit_code: int | None = 1, at_s: float | None = None, **fields: Any
    ) -> list[AnyFact]:
        node = self.node_of(job)
        return self.hear(finished(job, node, exit_code, **fields), released(job, node), at_s=at_s)

    def living(self) -> list[str]:
        return [job_id for job_id in self.model.jobs if self.cluster.jobs[job_id].cancel is None]

    def ready(self) -> list[str]:
        return [endpoint.job_id for endpoint in ready_replicas(self.cluster, "chat")]


def ready(job: str, node: str) -> f.ReplicaReady:
    return f.ReplicaReady(job_id=JobId(job), attempt=1, node_id=NodeId(node))


def scaled(facts: Sequence[AnyFact]) -> list[tuple[list[str], list[str]]]:
    """Return the (added, retired) replicas of each ReplicasScaled."""
    return [
        ([replica.job_id for replica in fact.add], list(fact.retire))
        for fact in facts
        if isinstance(fact, f.ReplicasScaled)
    ]


def unready(job: str, node: str = "a") -> f.ReplicaUnready:
    return f.ReplicaUnready(
        job_id=JobId(job), attempt=1, node_id=NodeId(node), reason="no answer within 2 s"
    )
