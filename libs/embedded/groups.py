"""Removes the control groups that the agents of a state directory leave behind.

Tests: tests/integration/test_embedded_clean.py.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from libs.common.process.agent_names import name_on_machine

MOUNTS: Final = Path("/proc/self/mountinfo")
KINDS: Final = ("cgroup", "cgroup2")


def names_of(state: Path) -> list[str]:
    """Return the names of the groups of the agents of this state directory."""
    folders = state / "services"
    if not folders.is_dir():
        return []
    return [name_on_machine(each.name, each) for each in sorted(folders.iterdir()) if each.is_dir()]


def remove_empty(names: list[str], parent: str) -> None:
    """Remove these groups below `parent` in each hierarchy; those with processes stay."""
    if not parent:
        return
    for root in _hierarchies():
        for name in names:
            group = root / parent / name
            if group.is_dir():
                for below in (each for each in group.iterdir() if each.is_dir()):
                    _remove(below)
                _remove(group)


def _remove(group: Path) -> None:
    with contextlib.suppress(OSError):
        group.rmdir()


def _hierarchies() -> Iterator[Path]:
    try:
        lines = MOUNTS.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        before, _, after = line.partition(" - ")
        if after.split(" ", 1)[0] in KINDS:
            yield Path(before.split()[4])
