"""Parsers for the values of `#SBATCH` flags: minutes, MiB, `h100:4`, `node[01-04]`.

Pure. Each raises ValueError with the expected form. Tests: tests/unit/test_cli_sbatch.py.
"""

import re
from itertools import product
from math import prod
from typing import Final, NamedTuple

from libs.common import arrays
from libs.common.model import NODES_MAX
from libs.common.state.ordering import AFTER, SINGLETON

UNLIMITED: Final = ("infinite", "unlimited", "0")
DIGITS_MAX: Final = 9

_TIME: Final = re.compile(r"(?:(\d{1,9})-)?(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}))?")
_SIZE: Final = re.compile(r"(\d{1,12})([KMGT]?)B?", re.IGNORECASE)
_OUTSIDE_BRACKETS: Final = re.compile(r",(?![^\[]*\])")
_DEPENDENCY: Final = re.compile(rf"({'|'.join(AFTER)})(:[A-Za-z0-9._-]+)+|{SINGLETON}")
_BRACKETS: Final = re.compile(r"\[([0-9,-]+)\]")


class Devices(NamedTuple):
    """A number of GPUs of one kind: a model, or a MIG profile."""

    gpus: int = 0
    kind: str = ""


def number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX):
        raise ValueError("expected a whole number")
    return int(text)


def name(text: str) -> str:
    """Return one name. Slurm accepts several reservations; a job in Muster can use one."""
    if not text or "," in text:
        raise ValueError("expected one name: a job can use one reservation")
    return text


def span(text: str) -> tuple[int, int]:
    """Return the range of nodes for `2` or `2-4`."""
    low, _, high = text.partition("-")
    found = number(low), number(high or low)
    if not 1 <= found[0] <= found[1]:
        raise ValueError("expected a number of nodes, or a range such as 2-4")
    return found


def seconds(text: str) -> int:
    """Return the seconds of a Slurm time, or 0 for no limit.

    `90` is minutes, `1:30` minutes and seconds; `1:30:00`, `1-12` and `1-12:30` are accepted too.
    """
    if text.lower() in UNLIMITED:
        return 0
    if not (found := _TIME.fullmatch(text)):
        raise ValueError(
            "expected MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS or "
            "DAYS-HOURS:MINUTES:SECONDS"
        )
    days, first, second, third = found.groups()
    if days is not None or third is not None:
        hours, minutes, rest = first, second, third
    else:
        hours, minutes, rest = "0", first, second
    return int(days or 0) * 86_400 + int(hours) * 3_600 + int(minutes or 0) * 60 + int(rest or 0)


def size_bytes(text: str) -> int:
    """Return the bytes of a size; the default unit is MiB, and units step by 1024."""
    if not (found := _SIZE.fullmatch(text)):
        raise ValueError("expected a size such as 64G, or 4096 in MiB")
    return int(found[1]) << 10 * (" KMGT".index((found[2] or "M").upper()))


def devices(text: str) -> Devices:
    """Return the GPUs for `4`, `h100:4` or `h100` (one GPU)."""
    kind, _, count = text.rpartition(":")
    if not kind and not count.isdigit():
        kind, count = count, "1"
    if "," in text or ":" in kind:
        raise ValueError("expected a number of GPUs, or MODEL:NUMBER")
    return Devices(number(count), kind)


def array(text: str) -> str:
    return arrays.written(arrays.parse(text))


def dependencies(text: str) -> list[str]:
    """Return the dependencies of `afterok:a:b,singleton`.

    Other kinds and alternatives are refused, because the job would start too early without them.
    """
    found = text.split(",")
    if any(not _DEPENDENCY.fullmatch(each) for each in found):
        raise ValueError(f"expected afterok:JOB, afterany:JOB or {SINGLETON}, separated by commas")
    return found


def listed(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def nodes_named(text: str) -> list[str]:
    """Return the names in a Slurm node list; `a,node[01-03,7]` has five."""
    return [node for word in _OUTSIDE_BRACKETS.split(text) if word for node in _expanded(word)]


def _expanded(word: str) -> list[str]:
    parts = _BRACKETS.split(word)
    if any("[" in part or "]" in part for part in parts):
        raise ValueError("expected nodes such as a,b or node[01-04]")
    choices = [_numbers(part) if place % 2 else [part] for place, part in enumerate(parts)]
    if prod(len(choice) for choice in choices) > NODES_MAX:
        raise ValueError(f"expected at most {NODES_MAX} nodes")
    return ["".join(chosen) for chosen in product(*choices)]


def _numbers(text: str) -> list[str]:
    """Return the numbers of `01-03,7` as strings with their written width."""
    found: list[str] = []
    for word in text.split(","):
        low, _, high = word.partition("-")
        first, last = number(low), number(high or low)
        if last - first >= NODES_MAX:
            raise ValueError(f"expected at most {NODES_MAX} nodes")
        found += [str(one).zfill(len(low)) for one in range(first, last + 1)]
    return found
