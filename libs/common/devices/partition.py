"""Devices that are parts of one card: AMD cards with divided compute. Pure.

The first part has the card's id, the others the id with a dot and their number. A reset or a change
of mode affects all parts.
"""

from collections.abc import Iterable
from typing import Final

from libs.common.model import GpuId

DOT: Final = "."


def part_id(card: str, part: int) -> str:
    return f"{card}{DOT}{part}" if part else card


def card_of(uuid: str) -> str:
    """Return the id of the device's card."""
    return uuid.partition(DOT)[0]


def on_cards_of(uuids: Iterable[GpuId], among: Iterable[GpuId]) -> dict[GpuId, None]:
    """Return those of `uuids` that share a card with any of `among`."""
    cards = {card_of(uuid): None for uuid in among}
    return {uuid: None for uuid in uuids if card_of(uuid) in cards}


def one_of_each_card(uuids: Iterable[GpuId]) -> list[GpuId]:
    """Return the first device of each card."""
    first: dict[str, GpuId] = {}
    for uuid in uuids:
        first.setdefault(card_of(uuid), uuid)
    return list(first.values())
