"""`muster simulate` from the command line to the table: the scheduler's process runs and its report
is shown.
"""

import json
from pathlib import Path

import pytest

from libs.cli.main import call

TRACE = "job_id,submit_s,gpus,duration_s,tenant\na,0,8,100,red\nb,10,4,20,blue\n"


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "jobs.csv"
    path.write_text(TRACE)
    return str(path)


def test_a_single_order_is_shown_with_waits_by_size_and_tenant(
    trace: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(["simulate", "--trace", trace, "--nodes", "1x8"]) == 0
    said = capfd.readouterr().out.splitlines()
    assert [line.split()[0] for line in said if line] == [
        "ORDER",
        "fifo",
        "GPUS",
        "3-4",
        "5-8",
        "TENANT",
        "blue",
        "red",
    ]
    assert said[1].split()[1:] == [
        "2",
        "100.0%",
        "91.7%",
        "0.0%",
        "1m45s",
        "1m50s",
        "1m30s",
        "1m30s",
        "0",
        "0.500",
    ]


def test_orders_are_compared_in_one_table(trace: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        call(
            [
                "simulate",
                "--trace",
                trace,
                "--nodes",
                "1x8",
                "--preempt",
                "--compare",
                "fifo,las",
                "-o",
                "json",
            ]
        )
        == 0
    )
    found = json.loads(capfd.readouterr().out)
    assert [(run["order"], run["completed"]) for run in found["runs"]] == [("fifo", 2), ("las", 2)]


def test_an_error_is_one_line_and_wrong_usage_names_the_reason(
    trace: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(["simulate", "--trace", "nope.csv", "--nodes", "1x8"]) == 1
    assert capfd.readouterr().err.startswith("muster: there is no file nope.csv")
    assert call(["simulate", "--trace", trace, "--nodes", "8"]) == 1
    assert "for a size, write 64x8" in capfd.readouterr().err
    assert call(["simulate", "--trace", trace, "--nodes", "1x8", "--restart-overhead", "30s"]) == 2
    assert "--restart-overhead needs --preempt" in capfd.readouterr().err
    assert call(["simulate", "--trace", trace, "--nodes", "1x8", "--preempt", "--backfill"]) == 2
    assert "--preempt cannot be combined with --backfill" in capfd.readouterr().err
