"""The end of former leases: the long lease of a planned stop, and the timing of an earlier profile.

Pure; times are nanoseconds of this machine's boot clock, given as arguments. After a change of the
profile some agents go by the former timing. Until none does, the scheduler grants by the new one,
and counts silence by the longest and renewals by the shortest lease of them all. That is over once
every agent that may hold a lease has named a roster of the new timing, and a former lease and its
margin have passed since, because an agent may have extended its lease just before.
"""

from collections.abc import Sequence

from libs.common.facts import AnyFact, LeaseExtended, LeaseProfileSettled
from libs.common.state.cluster import Cluster, slowest_timing
from services.scheduler.leases.leases import MS, Leases
from services.scheduler.leases.renewals import Renewals


class Former:
    """The time since which every agent is known to use the timing of the commit `seq`."""

    def __init__(self) -> None:
        self.seq = 0
        self.known_since: int | None = None

    def begin(self) -> None:
        """Begin a term."""
        self.known_since = None

    def facts(
        self, leases: Leases, renewals: Renewals, cluster: Cluster, now: int
    ) -> Sequence[AnyFact]:
        """Return the fact that ends one of the two; none while neither is over."""
        if leases.extension_is_over(cluster, now):
            return (LeaseExtended(duration_ms=0),)
        if not cluster.former:
            return ()
        if self.seq != cluster.timing_seq or not renewals.timing_is_known(cluster):
            self.seq, self.known_since = cluster.timing_seq, None
        if self.known_since is None:
            self.known_since = now if renewals.timing_is_known(cluster) else None
            return ()
        if now - self.known_since <= slowest_timing(cluster).silence_ms * MS:
            return ()
        return (LeaseProfileSettled(seq=cluster.timing_seq),)
