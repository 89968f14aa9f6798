"""The commit of a time: the last one of the control plane at or before it; nodes' clocks, which may
be wrong, are not asked.
"""

import pytest

from libs.common import facts as f
from libs.common import subjects
from libs.common.facts import AnyFact, Commit
from libs.common.model import JobId, NodeId
from libs.common.transport.bus_memory import MemoryBus
from libs.common.transport.log_memory import MemoryLog, MemoryStream
from services.api_gateway.moments import times
from services.api_gateway.moments.times import Dated, dated, seq_at
from services.api_gateway.views.entries import Entries

QUOTA, NODE = subjects.QUOTA, subjects.node("n1")


def entries(*commits: tuple[str, int]) -> Entries:
    """A log of commits, each a subject and a time."""
    stream = MemoryStream()
    for number, (subject, at_ns) in enumerate(commits, start=1):
        fact: AnyFact = f.JobAdmitted(job_id=JobId(f"j{number}"))
        if subject == NODE:
            fact = f.JobStarted(job_id=JobId("j"), attempt=number, node_id=NodeId("n1"))
        commit = Commit(
            version=f.VERSION,
            min_reader=f.VERSION,
            writer=subject,
            number=number,
            epoch=0,
            at_ns=at_ns,
            seen=0,
            facts=(fact,),
        )
        last = stream.last_by_subject.get(subject)
        stream.store(subject, f.encode(commit), last.seq if last else 0)
    return Entries(MemoryLog(stream), MemoryBus())


@pytest.mark.parametrize(
    ("at_ns", "seq"), [(10, 1), (19, 1), (20, 2), (25, 2), (40, 4), (50, 5), (999, 5)]
)
async def test_a_time_finds_the_last_commit_before_it(at_ns: int, seq: int) -> None:
    log = entries(*((QUOTA, 10 * number) for number in range(1, 6)))
    assert await seq_at(log, 1, 5, at_ns) == seq


@pytest.mark.parametrize("wrong_ns", [0, 1 << 62])
async def test_a_node_with_a_wrong_clock_changes_nothing(wrong_ns: int) -> None:
    commits = [(QUOTA, 10), (NODE, wrong_ns), (NODE, wrong_ns), (QUOTA, 40), (NODE, wrong_ns)]
    log = entries(*commits)
    assert await seq_at(log, 1, 5, 39) == 3
    assert await seq_at(log, 1, 5, 40) == 5


async def test_many_commits_of_nodes_in_a_row_are_passed_over() -> None:
    many = times.SINGLE_MAX + 40
    log = entries((QUOTA, 10), *[(NODE, 5)] * many, (QUOTA, 20))
    assert await dated(log, 0, 1 + many) == Dated(1, 10)
    assert await dated(log, 1, 1 + many) is None
    assert await seq_at(log, 1, many + 2, 15) == many + 1
    assert await seq_at(log, 1, many + 2, 20) == many + 2
