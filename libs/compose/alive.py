"""`python -m libs.compose.alive FILE`: the health check of a container whose service keeps a pulse
(libs/common/process/pulse.py).

Exit 0 while the file is young, 1 once it is not. An engine shows an unhealthy container and leaves
it alone, so a service that has stood still for KILL_S is killed: the engine then starts the
container again. Imports nothing of Muster, because it runs every few seconds in every container.
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
        print(f"no pulse in {file} ({error}): the service has not begun yet")
        return 1
    if age_s <= OLD_S:
        return 0
    print(f"the service has stood still for {age_s:.0f} s; it is killed after {KILL_S:.0f} s")
    if age_s > KILL_S:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has ended by itself
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
