"""The cluster's timing: heartbeats, leases and terms, and the profiles to choose from. Pure."""

from collections.abc import Sequence
from typing import Final

import msgspec


class Timing(msgspec.Struct, frozen=True):
    """The cluster's timing in milliseconds.

    It is a fact, not a setting of a process, because both ends of a lease must agree on it.
    """

    heartbeat_ms: int = 1_000
    lease_ms: int = 13_000
    margin_ms: int = 1_500
    term_ms: int = 3_000

    @property
    def silence_ms(self) -> int:
        """The silence after which the scheduler may declare a node lost."""
        return self.lease_ms + self.margin_ms


# Profiles of an operator. `default` is the timing that the cluster was configured with.
DEFAULT: Final = "default"
FAST: Final = "fast"
PROFILES: Final = (DEFAULT, FAST)
FAST_TIMING: Final = Timing(heartbeat_ms=400, lease_ms=3_000, margin_ms=1_000)
# A supervisor asks its job to end this long before the lease ends, or a part of a short lease.
NOTICE_MS: Final = 2_000
NOTICE_PART: Final = 4


def of_profile(profile: str, configured: Timing) -> Timing:
    """Return the timing of a profile in a cluster that was configured with another one."""
    if profile == DEFAULT:
        return configured
    return msgspec.structs.replace(FAST_TIMING, term_ms=configured.term_ms)


def slowest(timings: Sequence[Timing]) -> Timing:
    """Return the longest of each time."""
    return Timing(
        heartbeat_ms=max(each.heartbeat_ms for each in timings),
        lease_ms=max(each.lease_ms for each in timings),
        margin_ms=max(each.margin_ms for each in timings),
        term_ms=max(each.term_ms for each in timings),
    )


def notice_ms(lease_ms: int) -> int:
    """Return how long before the end of a lease of this length a job is asked to end."""
    return min(NOTICE_MS, lease_ms // NOTICE_PART)
