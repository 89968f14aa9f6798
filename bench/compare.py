"""Compares the figures of one benchmark in two revisions: `make bench-compare BASE=REV NAME=x`.

The machine's speed changes by half within days, and within minutes where others work on it. So both
revisions run on it in turns, in the order base, this, this, base, and the medians are compared.
`this` is the working tree, with all changes that are not committed, or REV. The revision BASE is
checked out into a worktree of its own, which is removed afterwards. Both use the packages that are
installed. Tests: tests/unit/test_bench_compare.py.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
ROUNDS: Final = 3
RUN_MAX_S: Final = 3_600
# Lines of a run that failed which are shown.
TAIL_LINES: Final = 20
BASE: Final = "base"
THIS: Final = "this"


class Failed(Exception):
    """A run or a checkout did not succeed; the text says which, and what to do."""


class Key(NamedTuple):
    """A figure of a run. A run may print one figure several times: the number tells them apart."""

    figure: str
    number: int


class Row(NamedTuple):
    """A figure in both revisions. `ratio` is this over base; None if that cannot be said."""

    key: Key
    unit: str
    base: float
    this: float
    ratio: float | None
    base_range: tuple[float, float]
    this_range: tuple[float, float]


Values = dict[Key, list[float]]


def figures_in(output: str) -> Iterator[tuple[Key, float, str]]:
    """Yield the figures of one run's output: key, value and unit. Other lines are passed over."""
    seen: Counter[str] = Counter()
    for line in output.splitlines():
        try:
            found: Any = json.loads(line)
        except ValueError:
            continue
        if not isinstance(found, dict) or "figure" not in found:
            continue
        name, value = str(found["figure"]), found.get("value")
        key = Key(name, seen[name])
        seen[name] += 1
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield key, float(value), str(found.get("unit", ""))


def compared(base: Values, this: Values, units: dict[Key, str]) -> list[Row]:
    """Return a row for each figure that both revisions have, in the order of `this`."""
    rows = []
    for key, values in this.items():
        if not (before := base.get(key)):
            continue
        first, second = statistics.median(before), statistics.median(values)
        rows.append(
            Row(
                key=key,
                unit=units[key],
                base=first,
                this=second,
                ratio=second / first if first else None,
                base_range=(min(before), max(before)),
                this_range=(min(values), max(values)),
            )
        )
    return rows


def order(rounds: int) -> list[str]:
    """Return which revision runs when: a drift of the machine meets both alike."""
    pairs = [(BASE, THIS) if number % 2 == 0 else (THIS, BASE) for number in range(rounds)]
    return [side for pair in pairs for side in pair]


def lines_of(rows: Sequence[Row], missing: Iterable[Key]) -> Iterator[str]:
    """Yield the table, and the figures that only one revision has."""
    titles = ("figure", "base", "this", "ratio", "unit", "range of base", "range of this")
    table = [titles, *(_cells(row) for row in rows)]
    widths = [max(len(cells[place]) for cells in table) for place in range(len(titles))]
    for cells in table:
        yield "  ".join(
            cell.ljust(width) for cell, width in zip(cells, widths, strict=True)
        ).rstrip()
    for key in missing:
        yield f"{_name(key)}: only one of the revisions has it"


def _cells(row: Row) -> tuple[str, ...]:
    ranges = (f"{low:g} to {high:g}" for low, high in (row.base_range, row.this_range))
    ratio = f"{row.ratio:.3f}" if row.ratio is not None else "-"
    return (_name(row.key), f"{row.base:g}", f"{row.this:g}", ratio, row.unit, *ranges)


def _name(key: Key) -> str:
    return key.figure if not key.number else f"{key.figure} ({key.number + 1})"


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """Check a revision out into a worktree of its own. Raises Failed."""
    with tempfile.TemporaryDirectory(prefix="muster-compare-") as folder:
        place = Path(folder) / "tree"
        _git("worktree", "add", "--detach", str(place), revision)
        try:
            yield place
        finally:
            _git("worktree", "remove", "--force", str(place))


def _git(*words: str) -> None:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(
            f"git {' '.join(words)} failed: {done.stderr.strip()}: give a revision of this "
            "repository, for example BASE=HEAD~1"
        )


def run(folder: Path, name: str) -> str:
    """Run a benchmark of a revision, and return what it printed. Raises Failed."""
    paths = os.pathsep.join(
        [str(folder), str(folder / "libs/job/public"), os.environ.get("PYTHONPATH", "")]
    )
    try:
        done = subprocess.run(
            [sys.executable, "-m", f"bench.{name}"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=RUN_MAX_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"bench.{name} in {folder} had not ended after {RUN_MAX_S} s") from error
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-TAIL_LINES:])
        raise Failed(
            f"bench.{name} ended with {done.returncode} in {folder}:\n{tail}\nRun it alone with "
            f"make bench NAME={name}, and check that BASE has it"
        )
    return done.stdout


def measured(
    folders: dict[str, Path], name: str, rounds: int
) -> tuple[dict[str, Values], dict[Key, str]]:
    """Run both revisions in turns; return the values of each, and the units."""
    values: dict[str, Values] = {side: {} for side in folders}
    units: dict[Key, str] = {}
    for place, side in enumerate(order(rounds), start=1):
        print(f"run {place} of {2 * rounds}: {side}", file=sys.stderr, flush=True)
        for key, value, unit in figures_in(run(folders[side], name)):
            values[side].setdefault(key, []).append(value)
            units[key] = unit
    return values, units


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("base", help="the revision to compare with")
    parser.add_argument("name", help="the benchmark, as in make bench NAME=")
    parser.add_argument("--rev", default="", help="another revision than the working tree")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="runs of each revision")
    asked = parser.parse_args()
    try:
        with ExitStack() as stack:
            folders = {BASE: stack.enter_context(checked_out(asked.base)), THIS: ROOT}
            if asked.rev:
                folders[THIS] = stack.enter_context(checked_out(asked.rev))
            values, units = measured(folders, asked.name, max(1, asked.rounds))
            if not units:
                raise Failed(f"bench.{asked.name} printed no figure: give one that make bench has")
    except Failed as error:
        print(error, file=sys.stderr)
        return 1
    rows = compared(values[BASE], values[THIS], units)
    missing = [key for key in units if (key in values[BASE]) != (key in values[THIS])]
    print("\n".join(lines_of(rows, missing)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
