"""An allocation ends by time only when its time is over and its user was warned.

The time includes every extension that the scheduler had read. The warning comes no sooner than the
user asked for.
"""

from collections import defaultdict

from libs.common import facts as f
from libs.common.change import Stamp
from libs.common.facts import AnyFact, Commit, Unknown
from libs.common.state.cluster import Cluster
from tests.sim.checkers.checker import Checker
from tests.sim.world import World

SECOND_NS = 1_000_000_000


class AllocationsEndInTime(Checker):
    """`ends` are (sequence, moment) by attempt, as the log has them; `warned` is the last moment
    that was warned of.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.ends: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        self.warned: dict[tuple[str, int], int] = {}

    def before(
        self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit
    ) -> None:
        if isinstance(fact, f.JobPlaced) and fact.expires_ns:
            self.ends[fact.job_id, fact.attempt].append((0, fact.expires_ns))
        if isinstance(fact, f.AllocationExtended):
            self.ends[fact.job_id, fact.attempt].append((stamp.seq, fact.expires_ns))
        if isinstance(fact, f.AllocationWarned):
            self.warned[fact.job_id, fact.attempt] = fact.expires_ns
            time = cluster.jobs[fact.job_id].spec.allocation
            if time is None or commit.at_ns < fact.expires_ns - time.warn_s * SECOND_NS:
                self.fail(
                    f"{fact.job_id} attempt {fact.attempt} was warned of "
                    f"{(fact.expires_ns - commit.at_ns) / 1e9:.3f} s before its end"
                )
        if isinstance(fact, f.JobStopOrdered) and fact.reason == "expired":
            self._ended((fact.job_id, fact.attempt), commit)

    def _ended(self, attempt: tuple[str, int], commit: Commit) -> None:
        over_ns = max(expires_ns for seq, expires_ns in self.ends[attempt] if seq <= commit.seen)
        if commit.at_ns < over_ns:
            self.fail(
                f"{attempt} was ended {(over_ns - commit.at_ns) / 1e9:.3f} s before its time "
                "was over"
            )
        if self.warned.get(attempt, 0) < over_ns:
            self.fail(f"{attempt} was ended without a warning")
