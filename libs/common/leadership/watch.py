"""Decides from the answers of a leader whether it is gone.

Pure; times are nanoseconds of this machine's boot clock, given as arguments. A process that ended
has no listener any more: after two requests without a listener, within a fifth of a second, it
counts as gone. So does a leader whose server died, if it needs longer to reconnect; then a healthy
process loses its term. A process that was stopped answers nothing: the silence that proves it is a
multiple of the slowest answer so far, so a loaded machine is given more time. A follower that was
paused itself, or cut off from the bus, learns nothing in that time and counts again.
Tests: tests/unit/test_leader_watch.py.
"""

from collections import deque
from typing import Final

MS: Final = 1_000_000
# Requests in a row that found no listener. Between them a leader may reconnect to another server.
ABSENCES: Final = 2
# A leader is gone after this many times its slowest answer, but never before SILENCE_MIN_MS.
SLOWEST_TIMES: Final = 8
SILENCE_MIN_MS: Final = 300
# Number of answers whose duration is kept.
ANSWERS_MAX: Final = 64
# After a pause of this process longer than this, or a broken connection, it counts again.
PAUSE_MAX_MS: Final = 250
# After this process was cut off from the bus, the leader may still be reconnecting.
RECONNECT_MS: Final = 2_000


class LeaderWatch:
    """The answers of a service's leader to one follower. `term_ms` bounds every wait."""

    def __init__(self, term_ms: int) -> None:
        self.term_ms = term_ms
        self.looked = 0
        self.heard = 0
        self.absences = 0
        self.grace_until = 0
        self.durations: deque[int] = deque(maxlen=ANSWERS_MAX)

    def begin(self, now: int) -> None:
        """Begin to watch: nothing that happened before counts."""
        self.looked = self.heard = now
        self.absences = 0

    def _look(self, now: int) -> None:
        """Count again if this process was paused since it last looked."""
        if now - self.looked > PAUSE_MAX_MS * MS:
            self.begin(now)
        self.looked = now

    def answered(self, asked: int, now: int) -> None:
        """Note an answer to the request that was sent at `asked`."""
        self.heard, self.absences, self.grace_until = now, 0, 0
        self.durations.append(now - asked)

    def absent(self) -> None:
        """Note a request that found no listener."""
        self.absences += 1

    def lost_bus(self, now: int) -> None:
        """Note that this process itself does not reach the bus."""
        self.heard, self.absences = now, 0
        self.grace_until = max(self.grace_until, now + min(RECONNECT_MS, self.term_ms) * MS)

    def began(self, now: int) -> None:
        """Note that another process has just begun a term. It may not answer yet."""
        self.heard, self.absences = now, 0
        self.grace_until = now + self.term_ms * MS

    def silence_ms(self) -> int:
        """Return the silence in milliseconds after which the leader is gone."""
        if not self.durations:
            return self.term_ms
        slowest_ms = SLOWEST_TIMES * max(self.durations) // MS
        return min(self.term_ms, max(SILENCE_MIN_MS, slowest_ms))

    def silent_for_ms(self, now: int) -> int:
        """Return how long the leader may still be silent; 0 if that time has passed."""
        until = max(self.heard + self.silence_ms() * MS, self.grace_until)
        return max(0, -(-(until - now) // MS))

    def is_gone(self, now: int) -> bool:
        """Return whether no process leads, as far as this one can tell. Call it before each
        request.
        """
        self._look(now)
        if now < self.grace_until:
            return False
        return self.absences >= ABSENCES or now - self.heard >= self.silence_ms() * MS
