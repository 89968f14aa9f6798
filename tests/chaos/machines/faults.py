"""The schedule of faults of one run, made from a seed.

Pure: the random numbers are an argument. The kinds are dealt like cards, so every kind occurs once
before any occurs twice. `test_faults.py` holds the rules.
"""

import random
from collections.abc import Sequence
from typing import Final

import msgspec

KILL: Final = "kill"
KILL_SERVERS: Final = "kill_servers"
FREEZE: Final = "freeze"
ISOLATE: Final = "isolate"
DEAF: Final = "deaf"
MUTE: Final = "mute"
SPLIT: Final = "split"
ONE_WAY: Final = "one_way"
SLOW: Final = "slow"
LOSSY: Final = "lossy"
FULL: Final = "full_disk"
FULL_ALL: Final = "full_disks"
POWER: Final = "power_cut"
POWER_ALL: Final = "power_cuts"
KINDS: Final = (
    *(KILL, KILL, KILL_SERVERS, FREEZE, FREEZE, ISOLATE, DEAF, MUTE, SPLIT, ONE_WAY),
    *(SLOW, LOSSY, FULL, FULL_ALL, POWER, POWER_ALL),
)
# Shortest and longest time of each kind, in seconds; a kind without a row has no duration.
LASTS_S: Final = {
    FREEZE: (1.0, 30.0),
    ISOLATE: (2.0, 20.0),
    DEAF: (2.0, 20.0),
    MUTE: (2.0, 20.0),
    SPLIT: (2.0, 15.0),
    ONE_WAY: (2.0, 20.0),
    SLOW: (5.0, 20.0),
    LOSSY: (5.0, 20.0),
    FULL: (5.0, 20.0),
    FULL_ALL: (3.0, 10.0),
    POWER: (0.5, 10.0),
    POWER_ALL: (0.5, 5.0),
}
# Time from the begin of one fault to the begin of the next.
EVERY_S: Final = (4.0, 12.0)
FIRST_S: Final = 5.0


class Fault(msgspec.Struct, frozen=True):
    """One fault: it begins `at_s` after the begin of the run and lasts `seconds`.

    `hosts` are where it is. For a split they are one side, for a one-way cut the sender; `others`
    are the other side, or the receiver.
    """

    at_s: float
    kind: str
    hosts: tuple[str, ...]
    others: tuple[str, ...] = ()
    seconds: float = 0.0


def schedule(
    chance: random.Random, length_s: float, servers: Sequence[str], others: Sequence[str]
) -> list[Fault]:
    """Return the faults in order of time. All of them end within `length_s`."""
    found: list[Fault] = []
    deck: list[str] = []
    at_s = FIRST_S
    while at_s < length_s:
        if not deck:
            deck = chance.sample(KINDS, len(KINDS))
        fault = _fault(chance, round(at_s, 2), deck.pop(), tuple(servers), tuple(others))
        if fault.at_s + fault.seconds <= length_s:
            found.append(fault)
        at_s += chance.uniform(*EVERY_S)
    return found


def _fault(
    chance: random.Random, at_s: float, kind: str, servers: tuple[str, ...], others: tuple[str, ...]
) -> Fault:
    shortest, longest = LASTS_S.get(kind, (0.0, 0.0))
    seconds = round(chance.uniform(shortest, longest), 2)
    hosts, away = _places(chance, kind, servers, others)
    return Fault(at_s=at_s, kind=kind, hosts=hosts, others=away, seconds=seconds)


def _places(
    chance: random.Random, kind: str, servers: tuple[str, ...], others: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    everything = (*servers, *others)
    if kind in (KILL_SERVERS, FULL_ALL, POWER_ALL):
        return servers, ()
    if kind in (FULL, POWER):
        return (chance.choice(servers),), ()
    if kind == SPLIT:
        return _sides(chance, servers, others)
    host = chance.choice(chance.choice((servers, others)))
    if kind == ONE_WAY:
        return (host,), (chance.choice([each for each in everything if each != host]),)
    return (host,), ()


def _sides(
    chance: random.Random, servers: tuple[str, ...], others: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return two sides of the cluster; each has a server and another host."""
    minority = chance.choice(servers)
    left = [minority, *chance.sample(others, chance.randint(1, len(others) - 1))]
    right = [each for each in (*servers, *others) if each not in left]
    return tuple(left), tuple(right)
