"""For all tests: what holds while `tests.measured` runs them, and that no configuration of this
machine is read.
"""

import os
from pathlib import Path
from typing import Final

import pytest

from libs.common.settings import configuration
from services.node_agent.supervision import zygote_link

SIMULATION: Final = Path(__file__).parent / "sim"
# `make drills` sets it to 1.
DRILLS: Final = "MUSTER_TEST_DRILLS"

# Before any test module reads the environment; children inherit it. Control groups are made by
# tests of them alone (tests/cgroups.py).
os.environ.update({configuration.CONFIG_DIR: "", configuration.ENV_FILE: "", "MUSTER_CGROUP": ""})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The simulation takes longest: begun last, it would be waited for alone. Drills need minutes
    of their own.
    """
    items.sort(key=lambda item: SIMULATION not in item.path.parents)
    if os.environ.get(DRILLS) != "1":
        for item in items:
            if item.get_closest_marker("drill"):
                item.add_marker(pytest.mark.skip(reason="a drill: make drills"))


@pytest.fixture(autouse=True, scope="session")
def supervisors_are_measured_too() -> None:
    """A zygote starts without site, and so without coverage: while everything is measured it starts
    with it.
    """
    if "COVERAGE_PROCESS_START" in os.environ:
        zygote_link.INTERPRETER_FLAGS[:] = ["-X", "utf8"]
