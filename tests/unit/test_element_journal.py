"""The journal of a batch says exactly what began, also after a power cut."""

import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.common import element_runs
from services.node_agent.supervisor import element_journal, elements
from services.node_agent.supervisor.element_journal import (
    DAMAGED,
    ELEMENTS_MAX,
    HEAD,
    MARKED_MAX,
    NAME,
    NEW,
    Journal,
    JournalError,
    Seen,
)

SHORT_NS = 1_000
LONG_NS = 10_000_000_000


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def both() -> tuple[Seen | None, Seen | None]:
    return element_journal.read(".", True), element_journal.read(".", False)


def test_nothing_began_before_the_journal_was_whole() -> None:
    assert both() == (None, None)
    Path(NEW).write_bytes(b"123")
    assert both() == (None, None)


def test_all_may_have_begun_if_the_journal_cannot_be_read() -> None:
    Path(NAME).write_bytes(b"123")
    assert both() == (DAMAGED, DAMAGED)
    os.remove(NAME)
    os.mkdir(NAME)
    assert both() == (DAMAGED, DAMAGED)


def test_an_element_that_could_not_be_started_has_not_begun() -> None:
    journal = Journal(0, 2)
    journal.begin(0, LONG_NS)
    journal.retract(0)
    assert element_journal.read(".", True) == Seen(0, [], 0)


def test_a_journal_that_cannot_be_written_says_so() -> None:
    journal = Journal(0, 2)
    used = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (HEAD.size + 2, used[1]))
    try:
        for place in (0, 1):
            with pytest.raises(JournalError):
                journal.end(place, 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, used)
        signal.signal(signal.SIGXFSZ, ignored)


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
    assert element_journal.read(".", True) == Seen(0, [0], ELEMENTS_MAX)


def test_the_supervisor_writes_the_results_that_facts_have() -> None:
    assert elements.SIGNAL_BASE == element_runs.SIGNAL_BASE
    assert elements.AT_LIMIT == element_runs.AT_LIMIT
    assert ELEMENTS_MAX == element_runs.BATCH_MAX
