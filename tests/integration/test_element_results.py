"""An element has a result if it ended by itself, and never because its attempt was told to end."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from services.node_agent.supervisor import element_journal
from services.node_agent.supervisor.elements import Elements
from services.node_agent.supervisor.ending import STOPPED, Ending
from services.node_agent.supervisor.order import Order


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def batch(script: str = "exit 3", **fields: Any) -> Elements:
    given = {"numbers": [7, 8, 9], "names": [], "first": 0, "limit_s": 0, "grace_s": 1}
    order = {
        "elements": given,
        "argv": ["/bin/sh", "-c", script],
        "env": dict(os.environ),
        "workdir": "/",
        "account": [],
        "stdin": False,
    }
    return Elements(cast(Order, {**order, **fields}))


def run_one(elements: Elements, ending: Ending | None = None) -> None:
    """Run an element, and record its end as that of an attempt in this state."""
    _, status = os.waitpid(elements.begin().pid, 0)
    elements.ended(status, ending or Ending(0, None))


def seen() -> tuple[list[int], int]:
    found = element_journal.read(".", True)
    assert found is not None
    return found.results, found.begun


def test_an_element_that_ended_before_its_attempt_was_told_to_end_has_a_result() -> None:
    ending = Ending(0, None)
    ending.told = STOPPED
    run_one(batch(), ending)
    assert seen() == ([3], 1)


@pytest.mark.parametrize("code", [0, 3])
def test_an_element_that_was_told_to_end_with_its_attempt_has_no_result(code: int) -> None:
    ending = Ending(0, None)
    ending.told = ending.reason = STOPPED
    run_one(batch(f"exit {code}"), ending)
    assert seen() == ([], 1)
