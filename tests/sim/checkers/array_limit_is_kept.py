"""Elements of an array begin in order, each once, and never more at a time than the array's limit.

The array ends with its last element.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from libs.common import arrays
from libs.common.change import Change, Stamp
from libs.common.facts import AnyFact, Commit, ElementBegun, JobClosed, Unknown
from libs.common.life import job_life
from libs.common.state.cluster import Cluster
from tests.sim.checkers.checker import Checker

if TYPE_CHECKING:
    from tests.sim.world import World


class ArrayLimitIsKept(Checker):
    """`begun`: the numbers of each array's elements so far.

    Counted from the jobs, not from what the fold says of the array.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.begun: dict[str, list[int]] = {}

    def after(
        self,
        cluster: Cluster,
        fact: AnyFact | Unknown,
        stamp: Stamp,
        commit: Commit,
        change: Change,
    ) -> None:
        if isinstance(fact, ElementBegun):
            self._one_more(cluster, fact)
        elif (
            isinstance(fact, JobClosed)
            and fact.job_id in cluster.jobs
            and cluster.jobs[fact.job_id].elements is not None
        ):
            self._ended(cluster, fact)

    def _one_more(self, cluster: Cluster, fact: ElementBegun) -> None:
        array = cluster.jobs[fact.array].spec.array
        numbers = self.begun.setdefault(fact.array, [])
        numbers.append(fact.number)
        alive = _alive(cluster, fact.array)
        assert array is not None
        if array.at_once and len(alive) > array.at_once:
            self.fail(
                f"{len(alive)} elements of {fact.array} are alive, and at most "
                f"{array.at_once} may be"
            )
        if fact.number != arrays.number_at(array, len(numbers) - 1):
            self.fail(f"element {fact.number} of {fact.array} begins after {numbers[:-1]}")

    def _ended(self, cluster: Cluster, fact: JobClosed) -> None:
        array = cluster.jobs[fact.job_id].spec.array
        numbers = self.begun.get(fact.job_id, [])
        if alive := _alive(cluster, fact.job_id):
            self.fail(f"{fact.job_id} has ended, and {alive[0]} has not")
        if (
            array is not None
            and fact.outcome == job_life.COMPLETED
            and len(numbers) != arrays.count(array)
        ):
            self.fail(f"{fact.job_id} completed with {len(numbers)} of its elements")


def _alive(cluster: Cluster, array: str) -> list[str]:
    return [
        job.job_id
        for job in cluster.jobs.values()
        if job.array == array and job.state not in job_life.ENDED
    ]
