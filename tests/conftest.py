"""For all tests: what holds while `tests.measured` runs them, and that no configuration of this
machine is read.
"""

import os
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from libs.common.settings import configuration
from services.node_agent.supervision import zygote_link

TESTS: Final = Path(__file__).parent
# What the tests of a folder mostly do.
COMPUTING: Final = "computing"
WAITING: Final = "waiting"
SHORT: Final = "short"
KINDS: Final = {"sim": COMPUTING, "property": COMPUTING, "unit": SHORT}
# Outside `make drills`, a test of the simulation runs with only so many of its seeds.
FIRST_SEEDS: Final = 2
# `make drills` sets it to 1.
DRILLS: Final = "MUSTER_TEST_DRILLS"

# Before any test module reads the environment; children inherit it. Control groups are made by
# tests of them alone (tests/cgroups.py).
os.environ.update({configuration.CONFIG_DIR: "", configuration.ENV_FILE: "", "MUSTER_CGROUP": ""})
# Otherwise gRPC would start threads in each child that a test forks, and some children crash.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Drills need minutes of their own. More seeds of the simulation are drills too."""
    items[:] = mixed(items)
    for item in items:
        if is_further_seed(item):
            item.add_marker("drill")
        if item.get_closest_marker("drill") and os.environ.get(DRILLS) != "1":
            item.add_marker(pytest.mark.skip(reason="a drill: make drills"))


def is_further_seed(item: pytest.Item) -> bool:
    """Return whether this item runs a test of the simulation with a seed after the first ones."""
    spec = getattr(item, "callspec", None)
    if spec is None or item.path.parent != TESTS / "sim" or "seed" not in spec.params:
        return False
    return bool(spec.indices["seed"] >= FIRST_SEEDS)


def mixed(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests in the order in which several processes take their files.

    Files that compute are spread among those that wait for clusters, so the processors are always
    in use. The files of short tests come last: then no process computes for long after all others.
    """
    paths = dict.fromkeys(item.path for item in items)
    kinds = {path: kind_of(path) for path in paths}
    number, seen = Counter(kinds.values()), Counter[str]()
    place: dict[Path, float] = {}
    for path, kind in kinds.items():
        place[path] = 1.0 if kind == SHORT else seen[kind] / number[kind]
        seen[kind] += 1
    return sorted(items, key=lambda item: (place[item.path], item.path))


def kind_of(path: Path) -> str:
    return KINDS.get(path.relative_to(TESTS).parts[0], WAITING)


@pytest.fixture(autouse=True, scope="session")
def supervisors_are_measured_too() -> None:
    """A zygote starts without site, and so without coverage: while everything is measured it starts
    with it.
    """
    if "COVERAGE_PROCESS_START" in os.environ:
        zygote_link.INTERPRETER_FLAGS[:] = ["-X", "utf8"]
