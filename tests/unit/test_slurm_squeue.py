"""The order of squeue's rows, and the modes of output files."""

from datetime import UTC, datetime
from typing import Any

import pytest

from libs.cli.slurm import sbatch
from libs.cli.slurm.job_columns import FIELDS, LETTERS, JobRow
from libs.cli.slurm.options import parse
from libs.cli.slurm.squeue import NUMBERS, TABLE, sorted_rows
from tests.integration.cli_world import job

NOW = datetime(2025, 1, 1, 1, 0, 1, tzinfo=UTC)


def row(name: str, **changes: Any) -> JobRow:
    more = {"queue": "default", "after": [], "reserved": [], "cpus_milli": 0, "memory_bytes": 0}
    return JobRow(job(name, **{**more, "ended_at": None, **changes}), "None", NOW)


@pytest.mark.parametrize(
    ("letter", "field", "values"),
    [
        ("l", "time_limit_s", [600, 86_400, 5_400, 0]),
        ("Q", "priority", [9, 100, 50]),
        ("m", "memory_bytes", [2 << 30, 10 << 30, 512 << 20]),
    ],
)
def test_rows_are_sorted_by_values_and_not_by_their_texts(
    letter: str, field: str, values: list[int]
) -> None:
    rows = [row(f"j{value}", **{field: value}) for value in values]
    found = [each.job[field] for each in sorted_rows(rows, parse(TABLE, ["-S", letter]))]
    assert found == sorted(values, key=lambda value: value or float("inf"))
    back = [each.job[field] for each in sorted_rows(rows, parse(TABLE, ["-S", f"-{letter}"]))]
    assert back == found[::-1]


def test_every_column_can_be_sorted() -> None:
    assert NUMBERS.keys() <= FIELDS.keys()
    for letter in LETTERS:
        assert len(sorted_rows([row("ja"), row("jb")], parse(TABLE, ["-S", letter]))) == 2


def test_a_file_is_opened_to_append_or_truncate() -> None:
    assert [sbatch.open_mode(text) for text in ("a", "append", "truncate", "T")] == [
        "append",
        "append",
        "truncate",
        "truncate",
    ]
    for text in ("", "other"):
        with pytest.raises(ValueError, match="expected append or truncate"):
            sbatch.open_mode(text)
