"""Device seconds that a job reports for simulated devices: one number in a file."""

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
def test_value_that_is_not_a_number_is_ignored(said: Path, tmp_path: Path, text: str) -> None:
    said.write_text(text)
    assert JobDirectories(tmp_path).device_s(ref()) is None


def test_special_file_gives_no_reading_and_does_not_block(said: Path, tmp_path: Path) -> None:
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
