"""The cluster's timing: heartbeats, leases and terms. Pure."""

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
