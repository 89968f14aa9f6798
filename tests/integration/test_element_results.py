"""An element has a result if it ended by itself, and never because its attempt was told to end."""

import contextlib
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from services.node_agent.supervisor import element_journal
from services.node_agent.supervisor.element_journal import HEAD
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
    _, status = os.waitpid(elements.begin_first().pid, 0)
    with contextlib.suppress(BlockingIOError):  # it was executed
        elements.read_failure()
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


def described(elements: Elements, reason: str = "exited") -> dict[str, Any]:
    record: dict[str, Any] = {"exit_code": 0, "signal": None, "reason": reason, "detail": ""}
    elements.describe(record)
    return record


@contextlib.contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Files of this process cannot get longer than this."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


def test_an_element_that_could_not_be_set_up_has_not_begun_and_its_attempt_ends() -> None:
    no_such_group = 0xFFFFFFFF
    elements = batch(account=[os.getuid(), os.getgid(), no_such_group])
    run_one(elements)
    assert not elements.begin_next() and seen() == ([], 0)
    record = described(elements)
    assert (record["reason"], record["exit_code"]) == ("exec_failed", None)
    assert "could not be set up" in record["detail"]
    assert described(elements, STOPPED)["reason"] == STOPPED


def test_no_element_begins_after_a_result_that_could_not_be_recorded() -> None:
    elements = batch()
    _, status = os.waitpid(elements.begin_first().pid, 0)
    with full_disk(HEAD.size):
        elements.ended(status, Ending(0, None))
        assert not elements.begin_next()
    assert seen() == ([], 1) and "recorded" in described(elements)["detail"]


def test_no_element_begins_that_could_not_be_recorded() -> None:
    elements = batch()
    run_one(elements)
    with full_disk(0):
        assert not elements.begin_next()
    assert seen() == ([3], 1) and described(elements)["reason"] == "exec_failed"
