"""Sets of nodes, and of devices, as bits of an integer. Pure."""

from collections.abc import Iterator


def indexes(members: int) -> Iterator[int]:
    """Yield the indexes of the bits that are set, lowest first."""
    while members:
        lowest = members & -members
        yield lowest.bit_length() - 1
        members ^= lowest
