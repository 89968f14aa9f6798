"""Times for which the client waits: for connections, for answers, and for a gateway that is away.

Pure.
"""

from typing import Final, NamedTuple

from libs.client.errors import InvalidRequest

CONNECT_S: Final = 10.0
ANSWER_S: Final = 30.0
RETRY_S: Final = 10.0
# Shorter than the time after which a gateway closes an idle connection.
IDLE_S: Final = 2.0
# One long poll. The gateway bounds it by MUSTER_WAIT_MAX_MS.
POLL_S: Final = 25.0
# A gateway sends something on an open stream every MUSTER_KEEPALIVE_MS (15 s).
SILENCE_S: Final = 60.0
# The gateway answers when it has stored the whole upload.
SEND_S: Final = 600.0
# Between two looks at something that no long poll watches.
LOOK_S: Final = 0.3
# A long poll if more wait at once than may: then each waits its turn.
POLL_BUSY_S: Final = 5.0
POLL_MIN_S: Final = 0.2
# How often the counts of an array are read while its progress is shown.
PROGRESS_S: Final = 1.0
# Pauses between two tries to continue a stream.
AGAIN_FIRST_S: Final = 0.1
AGAIN_MAX_S: Final = 2.0


class Timing(NamedTuple):
    """The bounds of a client in seconds.

    `retry_s` bounds the tries of one call; `away_s` those of a wait or a followed stream, which may
    outlive a restart of the gateway. `idle_s` is the life of an idle connection.
    """

    timeout_s: float = ANSWER_S
    retry_s: float = RETRY_S
    away_s: float = 120.0
    connect_s: float = CONNECT_S
    idle_s: float = IDLE_S


def check_bounds(timeout_s: float, retry_s: float, calls_at_once: int) -> None:
    """Raise InvalidRequest naming the argument of a client that is out of its bounds."""
    if not timeout_s > 0:
        raise InvalidRequest(f"timeout_s: {timeout_s} is not a time: give more than 0 seconds")
    if not retry_s >= 0:
        raise InvalidRequest(f"retry_s: {retry_s} is not a time: give 0 seconds or more")
    if calls_at_once < 1:
        raise InvalidRequest(f"calls_at_once: {calls_at_once} is out of bounds: give 1 or more")


def poll_s(waiting: int, at_once: int, left_s: float = POLL_S) -> float:
    """Return how long one of `waiting` long polls may take, if `at_once` may be open."""
    busy_s = max(POLL_MIN_S, POLL_BUSY_S * at_once / waiting) if waiting > at_once else POLL_S
    return min(busy_s, left_s)


class Patience:
    """The pauses of a follower that lost its gateway; an answer resets them."""

    def __init__(self, away_s: float) -> None:
        self.away_s = away_s
        self.since_s: float | None = None
        self.next_s = AGAIN_FIRST_S

    def reset(self) -> None:
        """Note that the gateway answered."""
        self.since_s = None
        self.next_s = AGAIN_FIRST_S

    def pause_s(self, now_s: float, asked_s: float = 0.0) -> float | None:
        """Return the pause before the next try, or None if the gateway was away for too long.

        `asked_s` is the least pause that the gateway asks for.
        """
        if self.since_s is None:
            self.since_s = now_s
        if now_s - self.since_s > self.away_s:
            return None
        found, self.next_s = self.next_s, min(AGAIN_MAX_S, 2 * self.next_s)
        return max(found, asked_s)
