"""`python -m tests.chaos.machines.powered IMAGE PLACE COMMAND...`: a machine with a disk of its
own.

It waits while the machine is off, mounts the disk and becomes COMMAND. A file system that is still
shut down, because its last process has not quite ended, is unmounted and mounted again. It runs in
a mount namespace of its own, so the kernel unmounts the disk when the last process ends.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from tests.chaos.machines.disks import FILL

LOOK_S: Final = 0.1
TRIES_MAX: Final = 100


def main(image: Path, place: Path, command: list[str]) -> None:
    off, full = place.with_name(f"{place.name}.off"), place.with_name(f"{place.name}.full")
    while off.exists():
        time.sleep(LOOK_S)
    for _ in range(TRIES_MAX):
        if mounted(image, place, bool(full.exists())):
            os.execvp(command[0], command)
        time.sleep(LOOK_S)
    sys.exit(f"{image} could not be mounted at {place} in {TRIES_MAX} tries")


def mounted(image: Path, place: Path, full: bool) -> bool:
    """Mount the disk; return whether it can be written."""
    words = ["mount", "-o", "loop", str(image), str(place)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"mount: {done.stderr.strip()}", file=sys.stderr, flush=True)
        return False
    try:
        if not full:
            (place / FILL).unlink(missing_ok=True)
        probe = place / "probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        print(f"{place} cannot be written yet: {error}", file=sys.stderr, flush=True)
        subprocess.run(["umount", str(place)], check=False)
        return False
    return True


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
