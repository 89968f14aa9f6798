"""`python -m tests.measured`: the tests with the coverage of every process that they start.

The simulation is left out, because it takes longest when it is measured; `make test` runs it.
`python -m tests.measured tests/unit tests/property` measures these folders only: they alone reach
each line and branch of the pure files.

Most of the code runs in processes that get a clean environment, which no variable of coverage's
reaches. So for the time of the run a .pth file in the virtual environment starts coverage in each
interpreter that runs something of ours; the jobs of the tests start as fast as ever.
"""

import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
HOOK: Final = "muster_coverage.pth"
SIMULATION: Final = "tests/sim"


@contextmanager
def hooked() -> Iterator[None]:
    """Every interpreter of this virtual environment measures itself, until the end."""
    hook = Path(sysconfig.get_path("purelib")) / HOOK
    config, data = str(ROOT / "pyproject.toml"), str(ROOT / ".coverage")
    start = (
        f"os.environ.update(COVERAGE_PROCESS_START={config!r}, COVERAGE_FILE={data!r}), "
        "__import__('coverage').process_startup()"
    )
    hook.write_text(
        "import os, re, sys; re.search(r'pytest|\\b(libs|services)\\b', ' "
        f"'.join(sys.orig_argv)) and ({start})\n"
    )
    try:
        yield
    finally:
        hook.unlink()


def main(tests: Sequence[str]) -> int:
    """Run these tests, and a second time alone those that failed, because measuring slows them."""
    with hooked():
        spread = ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")
        return pytest(tests, *spread) and pytest(tests, "--last-failed")


def pytest(tests: Sequence[str], *flags: str) -> int:
    command = [sys.executable, "-m", "pytest", *flags, f"--ignore={SIMULATION}", *tests]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["tests"]))
