"""What the jobs of `bench.mixed` run: they use their simulated devices as programs use real ones,
in steps with pauses between them.

`train SECONDS FILE` computes so long, waits for data between two steps, saves its work every so
often and when it is told to, and goes on from there as its next attempt. `work SECONDS` is somebody
who tries something: bursts, and thinking between them. A step is a measured sleep; what it took is
added up and told as docs/howto/simulated-devices.md says.
"""

import os
import signal
import sys
import time
from pathlib import Path

STEP_S = 0.05
# Of each step: waiting for the next data, no device computes meanwhile.
DATA_S = 0.002
SAVE_EVERY_S = 10.0
SAVE_S = 0.3
BURST_S = 2.0
THINK_S = 1.0


class Devices:
    """All devices of the job, kept busy together; `used_s` so far."""

    def __init__(self) -> None:
        self.told = os.open(
            f"{os.environ['MUSTER_JOB_DIR']}/device-seconds", os.O_WRONLY | os.O_CREAT, 0o600
        )
        self.used_s = 0.0

    def compute(self, seconds: float) -> None:
        began = time.monotonic()
        time.sleep(seconds)
        self.used_s += time.monotonic() - began
        os.pwrite(self.told, f"{self.used_s:.6f}".encode(), 0)


class Saving:
    """Told by a signal; the work is saved between two steps."""

    def __init__(self, file: Path) -> None:
        self.file, self.told = file, False
        signal.signal(signal.SIGUSR1, self.note)

    def note(self, number: int, frame: object) -> None:
        self.told = True

    def load(self) -> float:
        return float(self.file.read_text()) if self.file.exists() else 0.0

    def save(self, done_s: float) -> None:
        """Whole or not at all, and only then it is said."""
        time.sleep(SAVE_S)
        beside = self.file.with_suffix(f".{os.getpid()}")
        beside.write_text(str(done_s))
        beside.replace(self.file)
        Path(os.environ["MUSTER_CHECKPOINT_FILE"]).touch()
        self.told = False


def train(wanted_s: float, file: Path) -> None:
    devices, saving = Devices(), Saving(file)
    done_before_s = saving.load()
    saved_s = 0.0
    while done_before_s + devices.used_s < wanted_s:
        devices.compute(STEP_S)
        time.sleep(DATA_S)
        if saving.told or devices.used_s - saved_s > SAVE_EVERY_S:
            saving.save(done_before_s + devices.used_s)
            saved_s = devices.used_s


def work(wanted_s: float) -> None:
    devices, until = Devices(), time.monotonic() + wanted_s
    while time.monotonic() < until:
        for _ in range(round(BURST_S / STEP_S)):
            devices.compute(STEP_S)
        time.sleep(THINK_S)


if __name__ == "__main__":
    if sys.argv[1] == "train":
        train(float(sys.argv[2]), Path(sys.argv[3]))
    else:
        work(float(sys.argv[2]))
