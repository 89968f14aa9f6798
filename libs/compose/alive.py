"""`python -m libs.compose.alive FILE`: the health check of a container whose service has a pulse.

The service touches FILE (libs/common/process/pulse.py). The check exits with 0 while the file is
young, with 1 otherwise. Docker does not restart unhealthy containers, so the check kills a service
that made no progress for KILL_S; Docker then starts the container again. It imports nothing of
Muster, because it runs every few seconds in every container.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Final

OLD_S: Final = 30.0
KILL_S: Final = 90.0


def main(file: str) -> int:
    """Return the exit code."""
    path = Path(file)
    try:
        age_s, pid = time.time() - path.stat().st_mtime, int(path.read_text())
    except (OSError, ValueError) as error:
        print(f"no pulse in {file} ({error}): the service has not started yet")
        return 1
    if age_s <= OLD_S:
        return 0
    print(f"the service made no progress for {age_s:.0f} s; it is killed after {KILL_S:.0f} s")
    if age_s > KILL_S:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has ended by itself
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
