"""The example of docs/transport.md runs and prints what it says."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/transport.md"


def test_the_example_of_the_page_runs() -> None:
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    paths = f"import sys; sys.path[:0] = {[str(PAGE.parents[1]), _public()]!r}\n"
    done = subprocess.run(
        [sys.executable, "-c", paths + found[1]], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.returncode) == ("b'hello'\nb'thanks'\n", 0), done.stderr


def _public() -> str:
    return str(PAGE.parents[1] / "libs/job/public")
