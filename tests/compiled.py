"""`python -m tests.compiled`: compile all programs and tests, in two processes.

`make test` runs it first. Otherwise each of its processes, and each service that a test starts,
would compile the same files.
"""

import subprocess
import sys
from typing import Final

# About half of the lines of the tests each. pytest compiles what it collects.
HALVES: Final = (
    ("tests/unit", "tests/sim", "tests/property"),
    ("tests", "--ignore=tests/unit", "--ignore=tests/sim", "--ignore=tests/property"),
)
COLLECT: Final = (sys.executable, "-m", "pytest", "-qq", "--collect-only")


def main() -> None:
    """Compile everything. The test run that follows reports what cannot be compiled."""
    halves = [subprocess.Popen([*COLLECT, *half], stdout=subprocess.DEVNULL) for half in HALVES]
    for each in halves:
        each.wait()


if __name__ == "__main__":
    main()
