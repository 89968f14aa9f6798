"""What a job says of simulated devices: a number in a file, and nothing else that it
may put there.
"""

import os
from pathlib import Path

import pytest

from services.node_agent.directories.job_directories import JobDirectories
from services.node_agent.directories.job_ownership import DEVICE_SECONDS
from tests.given_node import ref


@pytest.fixture
def said(tmp_path: Path) -> Path:
    found = tmp_path / "jobs" / "j.1" / DEVICE_SECONDS
    found.parent.mkdir(parents=True)
    return found


def test_the_number_in_the_file_counts(said: Path, tmp_path: Path) -> None:
    said.write_text("12.5\n")
    assert JobDirectories(tmp_path).device_s(ref()) == 12.5


def test_a_part_of_the_time_is_that_of_all_time(
    said: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said.write_text("70%\n")
    monkeypatch.setattr("time.monotonic", lambda: 1_000.0)
    assert JobDirectories(tmp_path).device_s(ref()) == 700.0


@pytest.mark.parametrize("text", ["", "often", "%", "x%", "nan", "inf", "1e999"])
def test_what_is_no_number_says_nothing(said: Path, tmp_path: Path, text: str) -> None:
    said.write_text(text)
    assert JobDirectories(tmp_path).device_s(ref()) is None


def test_what_is_no_file_says_nothing_and_holds_nobody_up(said: Path, tmp_path: Path) -> None:
    jobs = JobDirectories(tmp_path)
    assert jobs.device_s(ref()) is None
    os.mkfifo(said)
    assert jobs.device_s(ref()) is None
    said.unlink()
    said.symlink_to("/dev/zero")
    assert jobs.device_s(ref()) is None
    said.unlink()
    said.mkdir()
    assert jobs.device_s(ref()) is None
