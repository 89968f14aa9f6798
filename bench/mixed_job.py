"""Program of the jobs in `bench.mixed`: it uses simulated devices in steps with pauses, as real
programs do.

`train SECONDS FILE` computes for that long and waits for data between two steps. It saves its work
regularly and on a signal, and its next attempt continues from there. `work SECONDS` acts like an
interactive user: bursts, and thinking time between them. A step is a measured sleep. The program
adds up the steps and reports the sum as docs/howto/simulated-devices.md describes.
"""

import os
import signal
import sys
import time
from pathlib import Path

STEP_S = 0.05
# Time in each step in which the job waits for data and no device computes.
DATA_S = 0.002
SAVE_EVERY_S = 10.0
SAVE_S = 0.3
BURST_S = 2.0
THINK_S = 1.0


class Devices:
    """All devices of the job, kept busy together; `used_s` so far."""

    def __init__(self) -> None:
        self.requested = os.open(
            f"{os.environ['MUSTER_JOB_DIR']}/device-seconds", os.O_WRONLY | os.O_CREAT, 0o600
        )
        self.used_s = 0.0

    def compute(self, seconds: float) -> None:
        began = time.monotonic()
        time.sleep(seconds)
        self.used_s += time.monotonic() - began
        os.pwrite(self.requested, f"{self.used_s:.6f}".encode(), 0)


class Saving:
    """A request to save, which a signal sets; the program saves between two steps."""

    def __init__(self, file: Path) -> None:
        self.file, self.requested = file, False
        signal.signal(signal.SIGUSR1, self.note)

    def note(self, number: int, frame: object) -> None:
        self.requested = True

    def load(self) -> float:
        return float(self.file.read_text()) if self.file.exists() else 0.0

    def save(self, done_s: float) -> None:
        """Save the work atomically, then confirm the checkpoint."""
        time.sleep(SAVE_S)
        beside = self.file.with_suffix(f".{os.getpid()}")
        beside.write_text(str(done_s))
        beside.replace(self.file)
        Path(os.environ["MUSTER_CHECKPOINT_FILE"]).touch()
        self.requested = False


def train(wanted_s: float, file: Path) -> None:
    devices, saving = Devices(), Saving(file)
    done_before_s = saving.load()
    saved_s = 0.0
    while done_before_s + devices.used_s < wanted_s:
        devices.compute(STEP_S)
        time.sleep(DATA_S)
        if saving.requested or devices.used_s - saved_s > SAVE_EVERY_S:
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
