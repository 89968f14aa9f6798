"""Facts about terms: their start, the cluster's timing, leases and plug-ins.

Pure; part of the union in `facts/__init__.py`.
"""

from libs.common.facts.fact import Fact
from libs.common.timing import Timing


class TermBegan(Fact, frozen=True, tag="term.began"):
    """A scheduler became the leader. Its epoch is `epoch_at` of the stream sequence of this commit.

    `orders` and `scores` are its plug-ins, with their versions.
    """

    instance: str
    orders: dict[str, str] = {}  # noqa: RUF012  (msgspec copies it)
    scores: dict[str, str] = {}  # noqa: RUF012


class ClusterConfigured(Fact, frozen=True, tag="cluster.configured"):
    """The first scheduler of a cluster recorded its name and timing."""

    cluster_id: str
    timing: Timing = Timing()


class LeaseProfileSet(Fact, frozen=True, tag="lease.profile_set"):
    """An operator chose a lease profile: how soon a lost node is noticed.

    `timing` is what the profile means in this cluster.
    """

    profile: str
    timing: Timing
    user: str = ""


class LeaseProfileSettled(Fact, frozen=True, tag="lease.profile_settled"):
    """No agent uses the timing of an earlier profile any more: each has heard of the one that the
    commit `seq` set, and what it was granted before is over.
    """

    seq: int


class LeaseExtended(Fact, frozen=True, tag="lease.extended"):
    """The scheduler stopped on purpose and granted all nodes a long lease.

    Every living node may run jobs for `duration_ms` after this commit without hearing from a
    scheduler. 0: no node holds such a lease any more, because a later term waited that long by its
    own clock, or because every node took a lease of that term.
    """

    duration_ms: int


class ClusterRestored(Fact, frozen=True, tag="cluster.restored"):
    """A restore began the cluster's next life, after the last commit of a backup.

    `life` counts the restores. Epochs of this life are above all epochs of the lives before. Until
    RestoreSettled nothing is placed: agents may still run attempts that the backup does not know.
    `backup` is the hash of the audit chain at the backup's end. `restore_id` is random: the same
    backup restored twice gives two lives with one number.
    """

    life: int
    backup: str
    restore_id: str = ""


class RestoreSettled(Fact, frozen=True, tag="restore.settled"):
    """No attempt from before the restore can be alive unless the log knows it.

    Every usable node has registered since, with only attempts of the log, or was declared lost, and
    no lease of before can be held any more.
    """

    life: int


class PluginDisabled(Fact, frozen=True, tag="plugin.disabled"):
    """The scheduler disabled a version of a plug-in because it failed.

    `extends` is the kind of plug-in: an order or a score (`plugins.py`). Queues and jobs that name
    it use the scheduler's default. Another version counts as another plug-in.
    """

    extends: str
    name: str
    version: str
    reason: str


class StateHashed(Fact, frozen=True, tag="state.hashed"):
    """The leader recorded the hash of its state after commit `seq`, by part of the state.

    `schema` is the fingerprint of the leader's build. A reader of the same build with another state
    stops (`libs/common/agreement/`).
    """

    seq: int
    schema: str
    parts: dict[str, bytes]


class QuotaTermBegan(Fact, frozen=True, tag="quota.term_began"):
    """A quota process became the leader. Its epoch is `epoch_at` of this commit's sequence."""

    instance: str


TermFact = (
    TermBegan
    | PluginDisabled
    | ClusterConfigured
    | LeaseExtended
    | LeaseProfileSettled
    | ClusterRestored
    | RestoreSettled
    | StateHashed
)
