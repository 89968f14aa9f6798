"""The devices that are parts of one card: AMD's, whose compute is divided. Pure.

The first part has the card's own id, the others a dot and their number behind it; what is done to
one (a reset, another mode) is done to all.
"""

from collections.abc import Iterable
from typing import Final

from libs.common.model import GpuId

DOT: Final = "."


def part_id(card: str, part: int) -> str:
    return f"{card}{DOT}{part}" if part else card


def card_of(uuid: str) -> str:
    """The id of the card that a device is, or is a part of."""
    return uuid.partition(DOT)[0]


def on_cards_of(uuids: Iterable[GpuId], among: Iterable[GpuId]) -> dict[GpuId, None]:
    """Of some devices those that are on one card with any of the others."""
    cards = {card_of(uuid): None for uuid in among}
    return {uuid: None for uuid in uuids if card_of(uuid) in cards}


def one_of_each_card(uuids: Iterable[GpuId]) -> list[GpuId]:
    """The first of each."""
    first: dict[str, GpuId] = {}
    for uuid in uuids:
        first.setdefault(card_of(uuid), uuid)
    return list(first.values())
