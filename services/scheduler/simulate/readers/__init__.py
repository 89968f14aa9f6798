"""Readers of trace files: one file per format, each with its `COLUMNS` and one function
`read(row)`.

All formats are CSV with a header line. `FORMS` lists them; the first one whose columns are all
present is used.
"""

import csv
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Final

from libs.common.errors import Refused
from services.scheduler.simulate.readers import muri, openb, philly, plain
from services.scheduler.simulate.trace import Row

FORMS: Final[tuple[ModuleType, ...]] = (openb, philly, muri, plain)


def read(path: Path) -> list[Row]:
    """Return every row of the file. Raises Refused, with the line, if one cannot be read."""
    with path.open(newline="") as file:
        lines = csv.DictReader(file)
        form = _form(path, lines.fieldnames or ())
        found = [_row(form, path, lines.line_num, line) for line in lines]
    if not found:
        raise Refused(f"{path} names no job")
    return found


def _form(path: Path, columns: Iterable[str]) -> ModuleType:
    named = frozenset(columns)
    for form in FORMS:
        if named >= form.COLUMNS:
            return form
    lacking = ", ".join(sorted(plain.COLUMNS - named))
    raise Refused(
        f"{path} has no known trace format: its first line must name the columns, and it lacks "
        f"{lacking}"
    )


def _row(form: ModuleType, path: Path, number: int, line: dict[str, str]) -> Row:
    try:
        row: Row = form.read(line)
    except (ValueError, TypeError) as error:
        raise Refused(f"{path}, line {number}: {error}") from error
    if row.duration_s < 0 or row.submit_s < 0 or row.gpus < 0:
        raise Refused(f"{path}, line {number}: a time or a count is below 0")
    return row
