"""MIG: the instances into which a card can be divided, and where each may begin on it.

Pure. The tables are those of NVIDIA's MIG user guide. A card has 8 memory slices (an A30 has 4). An
instance takes adjacent slices from one of a few fixed positions on, so two instances that fit by
size may still not fit together. A set of slices is an integer with one bit per slice.
"""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from libs.common.model import WHOLE_GPU, GpuHold, GpuId


class Profile(NamedTuple):
    """The number of memory slices of an instance, and the positions at which it may start."""

    slices: int
    starts: tuple[int, ...]


Profiles = dict[str, Profile]

# Suffix of profiles with the media engines: a card has at most one such instance.
SINGLE: Final = "+me"
_EVERY: Final = (0, 1, 2, 3, 4, 5, 6)


def _card(one: str, one_double: str, two: str, three: str, four: str, seven: str) -> Profiles:
    """Return the profiles of a usual card, named by their memory."""
    return {
        f"1g.{one}": Profile(1, _EVERY),
        f"1g.{one}{SINGLE}": Profile(1, _EVERY),
        f"1g.{one_double}": Profile(2, (0, 2, 4, 6)),
        f"2g.{two}": Profile(2, (0, 2, 4)),
        f"3g.{three}": Profile(4, (0, 4)),
        f"4g.{four}": Profile(4, (0,)),
        f"7g.{seven}": Profile(8, (0,)),
    }


CARDS: Final[dict[str, Profiles]] = {
    "A30": {
        "1g.6gb": Profile(1, (0, 1, 2, 3)),
        "2g.12gb": Profile(2, (0, 2)),
        "4g.24gb": Profile(4, (0,)),
    },
    "A100 40GB": _card(
        one="5gb", one_double="10gb", two="10gb", three="20gb", four="20gb", seven="40gb"
    ),
    "A100 80GB": _card(
        one="10gb", one_double="20gb", two="20gb", three="40gb", four="40gb", seven="80gb"
    ),
    "H100 80GB": _card(
        one="10gb", one_double="20gb", two="20gb", three="40gb", four="40gb", seven="80gb"
    ),
    "H100 96GB": _card(
        one="12gb", one_double="24gb", two="24gb", three="48gb", four="48gb", seven="96gb"
    ),
    "H200 141GB": _card(
        one="18gb", one_double="35gb", two="35gb", three="71gb", four="71gb", seven="141gb"
    ),
}
_WORDS: Final = re.compile(r"[^A-Z0-9]+")
PROFILES: Final = tuple(sorted({name for card in CARDS.values() for name in card}))


def card_named(model: str, memory_bytes: int) -> str:
    """Return the card of this model, for a device whose MIG mode is off; empty without MIG."""
    words = _WORDS.split(model.upper())
    fitting = [card for card in CARDS if card.split()[0] in words]
    return min(fitting, key=lambda card: abs(_gigabytes(card) - (memory_bytes >> 30)), default="")


def _gigabytes(card: str) -> int:
    return int("".join(filter(str.isdigit, card.split()[-1])))


def card_slices(card: str) -> int:
    """Return the number of memory slices of the card."""
    return max(profile.slices for profile in CARDS[card].values())


def card_of(profiles: tuple[str, ...]) -> str:
    """Return the card whose driver reports these profiles; empty if it is not in the tables."""
    return next(
        (
            card
            for card, known in CARDS.items()
            if profiles and all(name in known for name in profiles)
        ),
        "",
    )


def masks(card: str, name: str) -> tuple[int, ...]:
    """Return the places that the card has for an instance, as sets of slices, lowest start first;
    none for a profile that the card does not have.
    """
    profile = CARDS.get(card, {}).get(name)
    return (
        tuple(((1 << profile.slices) - 1) << start for start in profile.starts)
        if profile is not None
        else ()
    )


def share(card: str, name: str) -> int:
    """Return the share of the card that an instance counts for, in hundredths. It is rounded down,
    so every legal set of instances fits into the whole.
    """
    return WHOLE_GPU * CARDS[card][name].slices // card_slices(card)


def slices_of(holds: Iterable[GpuHold]) -> dict[GpuId, int]:
    """Return the memory slices of the MIG instances among these holds, by device."""
    return {hold.uuid: hold.mig_slices for hold in holds if hold.mig_slices}
