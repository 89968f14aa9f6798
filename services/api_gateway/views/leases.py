"""The lease profile as clients see it. Pure."""

import msgspec

from libs.common.state.cluster import Cluster


class LeasesShown(msgspec.Struct):
    """The lease profile and its times.

    A node without contact stops its jobs within `lease_ms`; they start elsewhere after `margin_ms`
    more. `settled`: every agent goes by it. Until then the longer of the former times counts too.
    """

    profile: str
    heartbeat_ms: int
    lease_ms: int
    margin_ms: int
    settled: bool


def leases_shown(cluster: Cluster) -> LeasesShown:
    return LeasesShown(
        profile=cluster.profile,
        heartbeat_ms=cluster.timing.heartbeat_ms,
        lease_ms=cluster.timing.lease_ms,
        margin_ms=cluster.timing.margin_ms,
        settled=not cluster.former,
    )
