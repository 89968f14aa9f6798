"""The pulse of a service and the health check that reads it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from libs.common.process import pulse
from libs.common.process.pulse import Pulse
from libs.compose import alive


class Clock:
    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(pulse, "time", found)
    return found


def test_pulse_is_written_while_all_parts_beat(tmp_path: Path, clock: Clock) -> None:
    kept = Pulse(str(tmp_path / "alive"), "reader", "decider")
    kept.beat("reader")
    assert not (tmp_path / "alive").exists()
    kept.beat("decider")
    assert (tmp_path / "alive").read_text() == f"{os.getpid()}\n"


def test_pulse_stops_when_one_part_stands_still(tmp_path: Path, clock: Clock) -> None:
    kept = Pulse(str(tmp_path / "alive"), "reader", "decider")
    kept.beat()
    written = kept.written
    clock.now += pulse.STILL_S + 1
    kept.beat("decider")
    assert kept.written == written
    kept.beat("reader")
    assert kept.written == clock.now


def test_pulse_without_a_file_writes_nothing(clock: Clock) -> None:
    kept = Pulse("", "reader")
    kept.beat("reader")
    assert kept.written == 0.0


def test_health_check_passes_while_the_pulse_is_young(tmp_path: Path) -> None:
    (tmp_path / "alive").write_text(f"{os.getpid()}\n")
    assert alive.main(str(tmp_path / "alive")) == 0


def test_health_check_fails_before_the_first_beat(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert alive.main(str(tmp_path / "alive")) == 1
    assert "has not started yet" in capsys.readouterr().out


@pytest.mark.parametrize(("age_s", "killed"), [(alive.OLD_S + 5, False), (alive.KILL_S + 5, True)])
def test_health_check_fails_on_an_old_pulse_and_kills_after_longer(
    tmp_path: Path, age_s: float, killed: bool
) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    file = tmp_path / "alive"
    file.write_text(f"{child.pid}\n")
    then = file.stat().st_mtime - age_s
    os.utime(file, (then, then))
    try:
        assert alive.main(str(file)) == 1
        if killed:
            assert child.wait(10) == -9
            assert alive.main(str(file)) == 1
        else:
            assert child.poll() is None
    finally:
        child.kill()
        child.wait()
