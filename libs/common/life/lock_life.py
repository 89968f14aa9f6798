"""The states of a claim: one client's request for a lock, from the queue to its end.

Pure. At most one claim of a lock is held. docs/lock-life.md is generated from this table.
"""

from typing import Final

WAITING: Final = "waiting"
HELD: Final = "held"
OVER: Final = "over"

LOCK_LIFE: Final[dict[tuple[str, str], str]] = {
    ("", "lock.requested"): WAITING,
    (WAITING, "lock.granted"): HELD,
    (WAITING, "lock.freed"): OVER,
    (HELD, "lock.renewed"): HELD,
    (HELD, "lock.freed"): OVER,
}

# Values of LockFreed.reason. The holder released it, or a waiting client withdrew.
RELEASED: Final = "released"
# The time to live passed without a renewal.
EXPIRED: Final = "expired"
# The lock was not free within the time that the client wanted to wait.
WAIT_OVER: Final = "wait_over"
# The tenant, or the lock, has too many claims.
TOO_MANY: Final = "too_many"
REASONS: Final = (RELEASED, EXPIRED, WAIT_OVER, TOO_MANY)
