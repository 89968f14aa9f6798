"""A gang with a preflight starts only after one, and never on a suspect of its own one.

A suspect is avoided until the time that the fact names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from libs.common.change import Stamp
from libs.common.facts import AnyFact, Commit, JobPlaced, PreflightEnded, Unknown
from libs.common.facts.fabric_facts import PASSED, UNFINISHED
from libs.common.model import JobId, NodeId
from libs.common.state.cluster import Cluster
from tests.sim.checkers.checker import Checker

if TYPE_CHECKING:
    from tests.sim.world import World


class PreflightsAreObeyed(Checker):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.suspects: dict[tuple[JobId, NodeId], int] = {}
        self.measured: dict[tuple[JobId, int], tuple[NodeId, ...]] = {}

    def before(
        self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit
    ) -> None:
        if isinstance(fact, PreflightEnded):
            self._end(cluster, fact)
        if isinstance(fact, JobPlaced) and cluster.jobs[fact.job_id].spec.preflight:
            self._placement(fact, stamp)

    def _end(self, cluster: Cluster, fact: PreflightEnded) -> None:
        test = cluster.fabric.tests.get(fact.test)
        nodes = test.nodes if test is not None else ()
        if fact.outcome in (PASSED, UNFINISHED):
            self.measured[fact.job_id, fact.attempt] = nodes
        for node_id in fact.excluded:
            self.suspects[fact.job_id, node_id] = fact.excluded_until_ns
            if node_id not in nodes:
                self.fail(f"{node_id} is a suspect of {fact.test}, which did not measure it")

    def _placement(self, fact: JobPlaced, stamp: Stamp) -> None:
        nodes = [member.node_id for member in fact.members]
        measured = self.measured.get((fact.job_id, fact.attempt), ())
        if len(nodes) > 1 and any(node_id not in measured for node_id in nodes):
            self.fail(f"{fact.job_id} starts on {nodes}, its preflight ended for {measured}")
        for node_id in nodes:
            if self.suspects.get((fact.job_id, node_id), 0) >= stamp.at_ns:
                self.fail(f"{fact.job_id} starts on {node_id}, a suspect of its preflight")
