"""The journal of a batch says exactly what began, also after a power cut."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.common import element_runs
from services.node_agent.supervisor import element_journal, elements
from services.node_agent.supervisor.element_journal import HEAD, MARKED_MAX, NAME, Journal, Seen

SHORT_NS = 1_000
LONG_NS = 10_000_000_000


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def both() -> tuple[Seen | None, Seen | None]:
    return element_journal.read(".", True), element_journal.read(".", False)


def test_nothing_began_without_a_journal_or_with_a_torn_one() -> None:
    assert both() == (None, None)
    Path(NAME).write_bytes(b"123")
    assert both() == (None, None)


def test_a_killed_supervisor_leaves_what_it_began() -> None:
    journal = Journal(5, 200)
    assert both() == (Seen(5, [], 5), Seen(5, [], 5))
    journal.begin(5, SHORT_NS)
    journal.end(5, 3)
    journal.begin(6, SHORT_NS)
    journal.close()
    assert element_journal.read(".", True) == Seen(5, [3], 7)


def test_after_a_power_cut_all_marked_elements_may_have_begun() -> None:
    journal = Journal(0, 200)
    journal.begin(0, SHORT_NS)
    assert element_journal.read(".", False) == Seen(0, [], MARKED_MAX)
    for place in range(MARKED_MAX + 1):
        journal.begin(place, SHORT_NS)
        journal.end(place, 0)
    journal.close()
    assert element_journal.read(".", False) == Seen(0, [0] * (MARKED_MAX + 1), 2 * MARKED_MAX)


def test_long_elements_are_marked_one_by_one_and_never_behind_the_end() -> None:
    journal = Journal(0, 3)
    journal.begin(0, LONG_NS)
    assert element_journal.read(".", False) == Seen(0, [], 1)
    journal.begin(1, SHORT_NS)
    journal.close()
    assert element_journal.read(".", False) == Seen(0, [], 3)


def test_results_count_up_to_the_first_missing_one() -> None:
    """A power cut may leave a later part of the file newer than an earlier one."""
    journal = Journal(0, 4)
    for place in range(3):
        journal.begin(place, SHORT_NS)
    journal.end(0, 0)
    journal.end(2, 0)
    journal.close()
    assert both() == (Seen(0, [0], 3), Seen(0, [0], 4))
    os.truncate(NAME, HEAD.size + 6)
    assert element_journal.read(".", True) == Seen(0, [0], 1)


def test_the_supervisor_writes_the_results_that_facts_have() -> None:
    assert elements.SIGNAL_BASE == element_runs.SIGNAL_BASE
    assert elements.AT_LIMIT == element_runs.AT_LIMIT
