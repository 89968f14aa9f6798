"""`make e2e`: the suite against docker compose where an engine answers, else against processes,
which it says.
"""

import os
import subprocess
import sys

import pytest

from tests.conftest import DRILLS
from tests.e2e import compose
from tests.e2e.stack import VARIABLE


def main() -> int:
    missing = compose.missing()
    if missing:
        print(f"e2e: {missing}: the same suite runs against processes (`muster up`)", flush=True)
    else:
        print("e2e: against docker compose; building the image", flush=True)
        subprocess.run(compose.command("build", "--quiet"), check=True)
    os.environ[DRILLS] = "1"
    os.environ[VARIABLE] = "processes" if missing else "compose"
    return int(pytest.main(["-v", "-s", "-x", "-rs", "-p", "no:cacheprovider", "tests/e2e"]))


if __name__ == "__main__":
    sys.exit(main())
