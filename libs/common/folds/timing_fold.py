"""Apply facts about the cluster's timing.

Pure and total, called by `fold.apply` only.
"""

from libs.common import facts as f
from libs.common.change import IGNORED, Change, Stamp
from libs.common.state.cluster import Cluster
from libs.common.timing import PROFILES


def configured(cluster: Cluster, fact: f.ClusterConfigured, stamp: Stamp) -> Change:
    """Replace the timing that the cluster had before, also where it is a former one."""
    cluster.cluster_id = cluster.cluster_id or fact.cluster_id
    before = cluster.configured_timing
    if cluster.timing == before:
        cluster.timing = fact.timing
    cluster.former = tuple(
        (seq, fact.timing if timing == before else timing) for seq, timing in cluster.former
    )
    cluster.configured_timing, cluster.configured = fact.timing, True
    return Change()


def profile_set(cluster: Cluster, fact: f.LeaseProfileSet, stamp: Stamp) -> Change:
    """Use another timing. Agents may use the former ones until the scheduler says otherwise."""
    timing = fact.timing
    if (
        fact.profile not in PROFILES
        or min(timing.heartbeat_ms, timing.lease_ms, timing.margin_ms, timing.term_ms) < 1
    ):
        return IGNORED
    cluster.former = (*cluster.former, (stamp.seq, cluster.timing))
    cluster.timing, cluster.profile, cluster.timing_seq = timing, fact.profile, stamp.seq
    return Change()


def settled(cluster: Cluster, fact: f.LeaseProfileSettled, stamp: Stamp) -> Change:
    """Drop the timings that were replaced up to then."""
    former = tuple(each for each in cluster.former if each[0] > fact.seq)
    if len(former) == len(cluster.former):
        return IGNORED
    cluster.former = former
    return Change()
