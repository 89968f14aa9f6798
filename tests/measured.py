"""`python -m tests.measured`: all tests, with the coverage of every process that they start.

Most of the code runs in processes that get a clean environment, which no variable of coverage's
reaches. So for the time of the run a .pth file in the virtual environment starts coverage in each
interpreter that runs something of ours; the jobs of the tests start as fast as ever.
"""

import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
HOOK: Final = "muster_coverage.pth"


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


def main() -> int:
    with hooked():
        return pytest("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder") and pytest(
            "--last-failed"
        )


def pytest(*flags: str) -> int:
    """All tests, or what failed of them: being measured is slow, and what minds the time is run a
    second time alone.
    """
    return subprocess.run(
        [sys.executable, "-m", "pytest", *flags, "tests"], cwd=ROOT, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
