"""Chooses the connection of the memory broker that gives way to a new one.

Every process of the machine may connect. Without room, the user with the most connections loses
one, so no users can keep the others out. A closed connection loses no memory. Tests:
tests/attack/test_memory_broker.py.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final, Protocol, TypeVar

CONNECTIONS_MAX: Final = 512
CONNECTIONS_OF_USER_MAX: Final = 256


class Connection(Protocol):
    """A connection. `key` is empty until the job has sent its token."""

    uid: int
    key: str


Kind = TypeVar("Kind", bound=Connection)


def gives_way(uid: int, connected: Iterable[Kind]) -> tuple[bool, Kind | None]:
    """Return whether a user may connect, and the connection to close for it.

    `connected` is in the order of arrival. A user with too many connections loses its oldest one
    without a token; if all have one, no further connection is accepted.
    """
    known = list(connected)
    number = Counter(each.uid for each in known)
    if number[uid] >= CONNECTIONS_OF_USER_MAX:
        victim = next((each for each in known if each.uid == uid and not each.key), None)
        return victim is not None, victim
    if len(known) < CONNECTIONS_MAX:
        return True, None
    most, _ = number.most_common(1)[0]
    if number[most] <= number[uid] + 1:
        return False, None
    theirs = [each for each in known if each.uid == most]
    return True, next((each for each in theirs if not each.key), theirs[0])
