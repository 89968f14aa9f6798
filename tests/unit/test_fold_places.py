"""The log's places: gaps are found, old news changes nothing; and the small rules of the
scheduler's indexes.
"""

from collections import Counter

import msgspec
import pytest

from libs.common import facts as f
from libs.common import fold, subjects
from libs.common.errors import Corrupt
from libs.common.facts import Commit
from libs.common.model import AttemptRef, JobId, NodeId
from libs.common.state.cluster import Cluster
from libs.common.state.ordering import JobQueue
from services.scheduler.policies import fifo
from services.scheduler.queueing.queue import Queue
from services.scheduler.state.ports import PORT_FIRST, PORT_LAST
from tests.given import ended, given, member, placed, registered, tell, waiting


def commit(number: int) -> Commit:
    return Commit(
        version=1,
        min_reader=1,
        writer=subjects.QUOTA,
        number=number,
        epoch=0,
        at_ns=0,
        seen=0,
        facts=(f.JobAdmitted(job_id=JobId("j")),),
    )


def test_a_gap_in_the_stream_stops_the_reader() -> None:
    with pytest.raises(Corrupt, match="jumps from 0 to 2"):
        fold.apply_entry(Cluster(), 2, subjects.QUOTA, commit(1))


def test_a_gap_in_a_writers_numbers_stops_the_reader() -> None:
    cluster = Cluster()
    fold.apply_entry(cluster, 1, subjects.QUOTA, commit(1))
    with pytest.raises(Corrupt, match="goes from commit 1 to 3"):
        fold.apply_entry(cluster, 2, subjects.QUOTA, commit(3))


def test_an_unknown_fact_is_counted_and_changes_nothing() -> None:
    cluster = Cluster()
    unknown = f.Unknown(name="job.dreamt", raw=b"")
    fold.apply_entry(
        cluster,
        1,
        subjects.QUOTA,
        Commit(
            version=1,
            min_reader=1,
            writer=subjects.QUOTA,
            number=1,
            epoch=0,
            at_ns=0,
            seen=0,
            facts=(unknown,),
        ),
    )
    assert (cluster.facts, cluster.ignored) == (1, 1)


def test_loss_of_an_earlier_incarnation_does_not_affect_a_returned_node() -> None:
    node = NodeId("a")
    history = [
        registered("a"),
        f.NodeLost(node_id=node, incarnation=1),
        registered("a", incarnation=2),
        registered("a", incarnation=3),
    ]
    cluster = given(*history, f.NodeReturned(node_id=node, incarnation=3)).cluster
    tell(cluster, f.NodeLost(node_id=node, incarnation=2))
    assert cluster.nodes[node].state == "healthy"


def test_fifo_knows_no_priority() -> None:
    now, queue = 1, JobQueue("default")
    jobs = given(waiting("late", priority=1), waiting("early", priority=99)).cluster.jobs
    assert fifo.key(jobs[JobId("late")], queue, now) < fifo.key(jobs[JobId("early")], queue, now)


def test_removal_of_a_job_that_does_not_wait_changes_nothing() -> None:
    queue = Queue()
    queue.remove(JobId("j"))
    assert queue.version == 0


def test_an_address_without_a_free_port_gives_0() -> None:
    state = given()
    state.ports.used["x"] = Counter(range(PORT_FIRST, PORT_LAST + 1))
    assert state.ports.free(state.cluster, "x") == 0


def test_the_ports_of_a_node_that_moved_are_those_of_its_new_address() -> None:
    state = given(registered("a"), waiting("j"), placed("j", member("a", 0), port=PORT_FIRST))
    attempts = (AttemptRef(JobId("j"), 1),)
    moved = msgspec.structs.replace(
        registered("a", incarnation=2, attempts=attempts), address="10.0.0.9"
    )
    state.refresh(tell(state.cluster, moved))
    state.cluster.port_last = PORT_LAST
    assert (
        state.ports.free(state.cluster, "127.0.0.1"),
        state.ports.free(state.cluster, "10.0.0.9"),
    ) == (PORT_FIRST, PORT_FIRST + 1)


def test_a_port_that_was_just_given_back_is_not_the_next() -> None:
    state = given(
        registered("a"), waiting("j"), placed("j", member("a", 0), port=PORT_FIRST), ended("j", "a")
    )
    assert state.ports.free(state.cluster, "127.0.0.1") == PORT_FIRST + 1
