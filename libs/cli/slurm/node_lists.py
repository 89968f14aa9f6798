"""Slurm's notation for lists of nodes: `node-[1-4,7],gpu02`. Pure.

`sbatch_values.nodes_named` reads the notation. Tests: tests/unit/test_slurm_columns.py.
"""

import re
from collections.abc import Iterable
from typing import Final

_NUMBERED: Final = re.compile(r"(.*?)([0-9]{1,9})")


def compressed(nodes: Iterable[str]) -> str:
    """Return the names as one list; names that differ only in their last number share it."""
    groups: dict[tuple[str, int], list[int]] = {}
    plain: list[str] = []
    for node in dict.fromkeys(nodes):
        found = _NUMBERED.fullmatch(node)
        if found is None:
            plain.append(node)
            continue
        # Numbers with leading zeros keep their width, so they form groups of their own.
        width = len(found[2]) if found[2].startswith("0") else 0
        groups.setdefault((found[1], width), []).append(int(found[2]))
    shown = [_group(prefix, width, numbers) for (prefix, width), numbers in groups.items()]
    return ",".join([*shown, *plain])


def _group(prefix: str, width: int, numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [
        f"{first:0{width}}" if first == last else f"{first:0{width}}-{last:0{width}}"
        for first, last in runs
    ]
    return f"{prefix}{texts[0]}" if len(numbers) == 1 else f"{prefix}[{','.join(texts)}]"
