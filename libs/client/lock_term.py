"""Compute how long a holder may count on its lock, by its own boot clock.

Pure. The time to live counts from when the last successful request was sent, which is before the
scheduler granted it. The command ends the work before that time has passed. The same rule runs in
tests/sim. Tests: tests/unit/test_lock_term.py.
"""

# Parts of the time to live: when to renew, and how long before its end the work is asked to end,
# and is killed.
RENEW_PART = 3
ASK_PART = 5
KILL_PART = 20


class LockTerm:
    """The time of one holder. `counted_ns` is when its last successful request was sent."""

    def __init__(self, ttl_ns: int, sent_ns: int) -> None:
        self.ttl_ns = ttl_ns
        self.counted_ns = sent_ns

    def renewed(self, sent_ns: int) -> None:
        """Count from a successful renewal, which was sent at `sent_ns`."""
        self.counted_ns = max(self.counted_ns, sent_ns)

    @property
    def renew_ns(self) -> int:
        """Return when to renew."""
        return self.counted_ns + self.ttl_ns // RENEW_PART

    @property
    def ask_ns(self) -> int:
        """Return when to ask the work to end, because no renewal succeeded."""
        return self.counted_ns + self.ttl_ns - self.ttl_ns // ASK_PART

    @property
    def kill_ns(self) -> int:
        """Return when to kill the work."""
        return self.counted_ns + self.ttl_ns - self.ttl_ns // KILL_PART

    @property
    def end_ns(self) -> int:
        """Return when another holder may have the lock."""
        return self.counted_ns + self.ttl_ns
