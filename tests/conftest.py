"""For all tests: what holds while `tests.measured` runs them."""

import os

import pytest

from services.node_agent.supervision import zygote_link


@pytest.fixture(autouse=True, scope="session")
def supervisors_are_measured_too() -> None:
    """A zygote starts without site, and so without coverage: while everything is measured it starts with it."""
    if "COVERAGE_PROCESS_START" in os.environ:
        zygote_link.INTERPRETER_FLAGS[:] = ["-X", "utf8"]
